"""Makes small SentencePiece models, the same as GGUF files, and what the sentencepiece library says of awkward texts.

Left out on purpose: control symbols in texts, which the library reads as text and transformers as tokens; texts with several equally
likely splits, between which the last bit of a sum in single precision decides; a user-defined symbol as the whole text.

    pip install sentencepiece protobuf gguf numpy && python make.py
"""
import base64, io, json, os, tempfile
import gguf
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb

CORPUS = """The quick brown fox jumps over the lazy dog. What is the model that serves the tokens?
A scheduler plans the next step while the workers run this one; blocks of the cache are shared.
def main(args):\n    for i in range(10):\n        print(i, args[i])\n    return 0
Der Schnellzug fährt über die Brücke nach Zürich. Größe, Straße, Übermut und Öl.
El niño comió piñas en la montaña. ¿Qué pasó? ¡Nada!
Le garçon a mangé des crêpes à l'hôtel. Où est-il allé?
Быстрая коричневая лиса прыгает через ленивую собаку.
今日はとても天気がいいです。東京に行きました。機械学習のモデル。
快速的棕色狐狸跳过懒狗。这是一个语言模型。
שלום עולם. مرحبا بالعالم.
<a href="x"> [b] {c} _d_ | ~ ^ & * + = \\ `e`
1234567890 3.14159 2026-11-21 12:30 100% $5.00 #tag @name user@example.com
The tokens of the token are tokens. They said that there is something there, and then they left.
internationalization tokenization organization realization generalization serialization
aaaa aaaaaaaa aaaaaaaaaaaaaaaa ababababab abcabcabc hahahaha""".split("\n")
TEXTS = [
    "", " ", "   ", "a", " a", "a ", "  a  ", "The model", " The model", "The  model", "The   model    serves ", "\n", "\n\n", "\t", "a\tb", "a\nb", "a \n b", "a\r\nb",
    "def main(args):\n    for i in range(10):\n        print(i)\n", "tokens tokens tokens", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "hahahahahahaha",
    "internationalizationalization", "Zürich über Straße", "Zu\u0308rich u\u0308ber", "¿Qué pasó? ¡Nada!", "Быстрая лиса", "今日はとても天気がいいです。", "这是一个语言模型。", "שלום עולם", "مرحبا بالعالم",
    "🦊", "👩\u200d👩\u200d👧", "🏳️\u200d🌈 flag", "a\u200bb", "a\u00a0b", "a\u3000b", "\ufeffBOM", "ﬁne ﬂat", "Ｆｕｌｌ ｗｉｄｔｈ", "①②③ ½ ™", "e\u0301", "▁", "a ▁ b", "a▁b", "_a_",
    "\u0000", "a\u0000b", "\u0001\u0002", "\u007f", "\ud7ff\ue000", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "1234567890", "3.14159e-10", "$5.00 #tag @name", "x" * 100, "The " * 20, "a<tool>b", "a <tool> b", "<tool> b", "<tool><tool>", "<too", "<0x41>", "a<0x0A>b", "<unk", "…", "a…b", "\u2028\u2029", "end.\u0085next", "naïve café", "ÅÅÅ", "ß", "ẞ", "İi", "ǅ", "ไทย", "हिन्दी", "한국어", "\u1100\u1161\u11a8",
]
RULES = [("ﬁ", "fi"), ("ﬂ", "fl"), ("…", "..."), ("\u00a0", " "), ("\u3000", " "), ("\t", " "), ("\n", " "), ("\r", " "), ("\u200b", ""), ("\ufeff", ""), ("™", "TM"), ("½", "1⁄2"), ("e\u0301", "é"), ("u\u0308", "ü"), ("①", "1")] \
    + [(chr(0xFF21 + i), chr(0x41 + i)) for i in range(26)] + [(chr(0xFF41 + i), chr(0x61 + i)) for i in range(26)]

def train(**options):
    out = io.BytesIO()
    with tempfile.TemporaryDirectory() as dir:
        rules = os.path.join(dir, "rules.tsv")
        with open(rules, "w") as file:
            for source, target in RULES:
                file.write(" ".join(f"{ord(c):X}" for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in target) + "\n")
        if options.pop("rules", False):
            options["normalization_rule_tsv"] = rules
        else:
            options["normalization_rule_name"] = "identity"
        spm.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS * 3), model_writer=out, hard_vocab_limit=False, character_coverage=0.995,
                                       num_threads=1, minloglevel=2, **options)
    model = pb.ModelProto(); model.ParseFromString(out.getvalue())
    # Where it was made says nothing.
    model.trainer_spec.ClearField("input"); model.ClearField("denormalizer_spec")
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    return model.SerializeToString()

def as_gguf(blob):
    model = pb.ModelProto(); model.ParseFromString(blob)
    unigram = model.trainer_spec.model_type == 1
    with tempfile.TemporaryDirectory() as dir:
        path = os.path.join(dir, "m.gguf")
        writer = gguf.GGUFWriter(path, "t5" if unigram else "llama")
        writer.add_tokenizer_model("t5" if unigram else "llama")
        writer.add_token_list([p.piece.encode() for p in model.pieces])
        writer.add_token_scores([p.score for p in model.pieces])
        writer.add_token_types([p.type for p in model.pieces])
        writer.add_add_space_prefix(model.normalizer_spec.add_dummy_prefix)
        if unigram:
            writer.add_remove_extra_whitespaces(model.normalizer_spec.remove_extra_whitespaces)
            if model.normalizer_spec.precompiled_charsmap:
                writer.add_precompiled_charsmap(model.normalizer_spec.precompiled_charsmap)
        writer.add_bos_token_id(max(model.trainer_spec.bos_id, 0)); writer.add_eos_token_id(model.trainer_spec.eos_id); writer.add_unk_token_id(model.trainer_spec.unk_id)
        writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
        return open(path, "rb").read()

KINDS = {
    # T5's and ALBERT's way: rules, spaces joined, unknown characters.
    "unigram-rules": dict(model_type="unigram", vocab_size=260, rules=True, user_defined_symbols=["<tool>"], control_symbols=["<|sep|>"]),
    # XLNet's and mBART's vocabularies with bytes.
    "unigram-bytes": dict(model_type="unigram", vocab_size=500, byte_fallback=True, remove_extra_whitespaces=False, split_digits=True, user_defined_symbols=["<tool>"]),
    # Llama's and InternLM's way.
    "bpe-prefix": dict(model_type="bpe", vocab_size=520, byte_fallback=True, remove_extra_whitespaces=False, split_digits=True, user_defined_symbols=["<tool>"], control_symbols=["<|sep|>"]),
    # Baichuan's way: no space before texts, runs of spaces are pieces.
    "bpe-plain": dict(model_type="bpe", vocab_size=520, byte_fallback=True, remove_extra_whitespaces=False, add_dummy_prefix=False, split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=["<tool>"]),
}
for name, options in KINDS.items():
    blob = train(**options)
    sp = spm.SentencePieceProcessor(model_proto=blob)
    cases = [{"text": t, "ids": sp.encode(t), "decoded": sp.decode(sp.encode(t))} for t in TEXTS]
    out = {"made_with": f"sentencepiece {spm.__version__}", "vocab_size": sp.get_piece_size(),
           "unk_id": sp.unk_id(), "bos_id": sp.bos_id(), "eos_id": sp.eos_id(),
           "model": base64.b64encode(blob).decode(), "gguf": base64.b64encode(as_gguf(blob)).decode(), "encode": cases}
    text = json.dumps(out, ensure_ascii=True, separators=(",", ":"))
    open(name + ".json", "w").write(text)
    print(name, sp.get_piece_size(), len(blob), len(text))
