//! The thread that compiles constraints, so that a plan waits for it only where the forward pass is faster.

use std::{
    path::PathBuf,
    sync::{Arc, mpsc},
};

use grammar::{Compiler, Token, Vocabulary};
use proto::{Constraint, Reasoning, Sampling};
use tokenizer::{TokenKind, Tokenizer};
use tracing::debug;

use super::{Guide, Ready, budget::Budget};

/// A handle on the thread; cloning shares it. The thread ends with the last handle.
#[derive(Clone)]
pub(crate) struct Grammars {
    orders: mpsc::Sender<Order>,
}

/// A sequence to guide.
struct Order {
    constraint: Option<Constraint>,
    reasoning: Option<Reasoning>,
    /// What was generated before.
    output: Vec<u32>,
    done: mpsc::Sender<Result<Ready, String>>,
}

impl Grammars {
    /// Starts the thread, which reads the tokenizer of a folder or GGUF file first.
    pub(crate) fn start(tokenizer: PathBuf, end_tokens: Vec<u32>) -> std::io::Result<Self> {
        // Bounded by the slots: each has one sequence, and with it one order.
        let (orders, queue) = mpsc::channel::<Order>();
        let work = move || {
            let compiler = compiler(&tokenizer, &end_tokens).map(Arc::new);
            if let Err(reason) = &compiler {
                debug!("no structured output: {reason}");
            }
            for order in queue {
                let done = order.done.clone();
                // Fails when the sequence is gone.
                let _ = done.send(compiler.clone().and_then(|compiler| order.carry_out(compiler)));
            }
        };
        std::thread::Builder::new().name("grammars".into()).spawn(work)?;
        Ok(Self { orders })
    }

    /// The guide of a sequence with this output so far; absent: its tokens are free.
    pub(crate) fn guide(&self, sampling: &mut Sampling, output: &[u32]) -> Option<Guide> {
        let (constraint, reasoning) = (sampling.constraint.take(), sampling.reasoning.take());
        if constraint.is_none() && reasoning.as_ref().is_none_or(|reasoning| reasoning.budget.is_none()) {
            return None;
        }
        let (done, ready) = mpsc::channel();
        // Where the thread is gone the guide says so.
        let _ = self.orders.send(Order { constraint, reasoning, output: output.to_vec(), done });
        Some(Guide::waiting(ready))
    }
}

impl Order {
    fn carry_out(self, compiler: Arc<Compiler>) -> Result<Ready, String> {
        let matcher = match &self.constraint {
            Some(constraint) => {
                let matcher = compiler.matcher(constraint, self.reasoning.as_ref());
                Some(matcher.map_err(|error| error.to_string())?)
            }
            None => None,
        };
        let budget = self.reasoning.and_then(Budget::new);
        let mut ready = Ready { matcher, budget, compiler };
        self.output.into_iter().try_for_each(|token| ready.accept(token))?;
        Ok(ready)
    }
}

fn compiler(path: &std::path::Path, end_tokens: &[u32]) -> Result<Compiler, String> {
    let tokenizer = Tokenizer::load(path).map_err(|error| error.to_string())?;
    let own = tokenizer.special_tokens().get("eos_token").and_then(|text| tokenizer.token_to_id(text));
    let own: Vec<u32> = own.into_iter().collect();
    let tokens = (0..tokenizer.vocab_size()).map(|id| match tokenizer.token_kind(id) {
        TokenKind::Text(bytes) => Token::Text(bytes),
        TokenKind::Added(text) => Token::Added(text),
        TokenKind::Special(name) => Token::Special(name),
        TokenKind::Absent => Token::Absent,
    });
    let end_tokens = if end_tokens.is_empty() { &own } else { end_tokens };
    let vocabulary = Vocabulary::new(tokens, end_tokens).ok_or("the model has no token that ends texts")?;
    let vocabulary = vocabulary.with_encoder(Arc::new(move |text| tokenizer.encode(text, false).unwrap_or_default()));
    Compiler::new(&vocabulary).map_err(|error| error.to_string())
}
