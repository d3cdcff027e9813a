"""Retrieval frameworks, unmodified: Cohere's client, langchain's and llama-index' embeddings, Jina's reranker. Arguments: base URL, key."""

import sys

import cohere
from langchain_openai import OpenAIEmbeddings
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.postprocessor.jinaai_rerank import JinaRerank

base, key = sys.argv[1], sys.argv[2]
query = "Where did the cat sit?"
documents = ["Stocks fell today.", "The cat sat on the mat.", "Rain is expected."]

client = cohere.ClientV2(api_key=key, base_url=base)
model = "tiny"
ranked = client.rerank(model=model, query=query, documents=documents, top_n=2)
assert len(ranked.results) == 2, ranked
scores = [result.relevance_score for result in ranked.results]
assert scores == sorted(scores, reverse=True), ranked
embedded = client.embed(
    model=model, texts=documents, input_type="search_document", embedding_types=["float", "ubinary"]
)
vectors = embedded.embeddings.float_
assert len(vectors) == 3 and len(embedded.embeddings.ubinary[0]) == -(-len(vectors[0]) // 8), embedded


def close(one, other):
    return len(one) == len(other) and all(abs(a - b) < 1e-5 for a, b in zip(one, other))


chain = OpenAIEmbeddings(model=model, base_url=f"{base}/v1", api_key=key, check_embedding_ctx_length=False)
assert all(close(*pair) for pair in zip(chain.embed_documents(documents), vectors))

index = OpenAILikeEmbedding(model_name=model, api_base=f"{base}/v1", api_key=key)
assert close(index.get_text_embedding(documents[1]), vectors[1])

jina = JinaRerank(top_n=2, model=model, base_url=f"{base}/v1", api_key=key)
nodes = jina.postprocess_nodes([NodeWithScore(node=TextNode(text=text)) for text in documents], query_str=query)
order = [documents.index(node.node.text) for node in nodes]
assert order == [result.index for result in ranked.results], (order, ranked)
