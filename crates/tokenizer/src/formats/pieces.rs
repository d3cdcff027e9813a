//! Vocabularies of SentencePiece: pieces with scores, split by merging (BPE) or by the likeliest path (unigram).

use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, Tokenizer as Reference,
    decoders::{byte_fallback::ByteFallback, fuse::Fuse, sequence::Sequence as Decoders, strip::Strip},
    models::{
        ModelWrapper,
        bpe::{BPE, Vocab},
        unigram::Unigram,
    },
    normalizers::{Precompiled, Prepend, Replace, Sequence as Normalizers, replace::ReplacePattern},
    pre_tokenizers::metaspace::{Metaspace, PrependScheme},
};

use super::{Beside, charsmap, check_fixed, mark_added, merges};

/// How texts are split into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Bpe,
    Unigram,
}

/// What a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// One piece; its place in the list is its id.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: PieceKind,
}

/// Where a space goes that a text does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    /// Nowhere.
    Never,
    /// Before the text, and before what follows a special token, whatever these begin with: SentencePiece's own way.
    Each,
    /// Before the text alone, unless it begins with a space or a special token.
    First,
}

/// A SentencePiece model.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    pub(super) pieces: Vec<Piece>,
    pub(super) algorithm: Algorithm,
    /// Compiled rules that replace characters; may be empty.
    pub(super) charsmap: Vec<u8>,
    pub(super) prefix: Prefix,
    pub(super) remove_extra_whitespaces: bool,
}

/// Stands for a space.
const SPACE: char = '▁';
/// Score of what must not be found in a text.
const NEVER: f32 = -1e6;

impl PieceKind {
    /// By number, as the model's and GGUF's files have them.
    pub(super) fn from_number(number: i64) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }

    /// Whether merging may end in such a piece.
    fn is_mergeable(self) -> bool {
        matches!(self, Self::Normal | Self::UserDefined | Self::Unused)
    }
}

impl Pieces {
    /// The tokenizer, without a template.
    pub(super) fn build(mut self, beside: &Beside) -> tokenizers::Result<Reference> {
        self.fix(beside)?;
        let added = self.added(beside);
        let mut reference = Reference::new(self.model(self.merges())?);
        reference.with_normalizer(Some(self.normalizer()?))?;
        if self.prefix == Prefix::First {
            reference.with_pre_tokenizer(Some(Metaspace::new(SPACE, PrependScheme::First, false)));
        }
        reference.with_decoder(Some(self.decoder()?));
        mark_added(&mut reference, added)?;
        Ok(reference)
    }

    /// Gives tokens of other files the ids that they must have.
    fn fix(&mut self, beside: &Beside) -> tokenizers::Result<()> {
        check_fixed(&beside.fixed, self.pieces.len())?;
        for (id, token) in &beside.fixed {
            let id = *id as usize;
            while self.pieces.len() <= id {
                let text = format!("<unused id {}>", self.pieces.len());
                self.pieces.push(Piece { text, score: NEVER, kind: PieceKind::Unused });
            }
            if self.pieces[id].text != token.content {
                let kind = if token.special { PieceKind::Control } else { PieceKind::UserDefined };
                self.pieces[id] = Piece { text: token.content.clone(), score: NEVER, kind };
            }
        }
        Ok(())
    }

    /// Pairs of ids that merge, first ones first.
    fn merges(&self) -> Vec<(u32, u32)> {
        if self.algorithm == Algorithm::Unigram {
            return Vec::new();
        }
        let mut made: Vec<(usize, &Piece)> =
            self.pieces.iter().enumerate().filter(|(_, piece)| piece.kind.is_mergeable()).collect();
        made.sort_by(|(_, a), (_, b)| b.score.total_cmp(&a.score));
        let made: Vec<(&str, u32)> = made.iter().map(|(id, piece)| (piece.text.as_str(), *id as u32)).collect();
        merges::of_pieces(&made, |piece: &str| piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at)).collect())
    }

    fn model(&self, merges: Vec<(u32, u32)>) -> tokenizers::Result<ModelWrapper> {
        let bytes = self.pieces.iter().any(|piece| piece.kind == PieceKind::Byte);
        let unknown = self.pieces.iter().position(|piece| piece.kind == PieceKind::Unknown);
        if self.algorithm == Algorithm::Unigram {
            // Bytes stand for characters without a piece; texts that read like them are none.
            let score = |piece: &Piece| if piece.kind == PieceKind::Byte { NEVER } else { piece.score };
            let vocab = self.pieces.iter().map(|piece| (piece.text.clone(), f64::from(score(piece)))).collect();
            return Ok(Unigram::from(vocab, unknown, bytes)?.into());
        }
        let text = |id: usize| self.pieces[id].text.clone();
        // Of pieces with the same text the first one counts.
        let vocab: Vocab = (0..self.pieces.len()).rev().map(|id| (text(id), id as u32)).collect();
        let merges = merges.into_iter().map(|(left, right)| (text(left as usize), text(right as usize))).collect();
        let mut builder = BPE::builder().vocab_and_merges(vocab, merges).fuse_unk(true).byte_fallback(bytes);
        if let Some(unknown) = unknown {
            builder = builder.unk_token(text(unknown));
        }
        Ok(builder.build()?.into())
    }

    /// Tokens that are cut out of texts before anything else.
    fn added(&self, beside: &Beside) -> Vec<AddedToken> {
        let added = |(id, piece): (usize, &Piece)| {
            if let Some(token) = beside.fixed.get(&(id as u32)) {
                return Some(token.clone());
            }
            let token = |special| AddedToken::from(piece.text.as_str(), special);
            match piece.kind {
                PieceKind::Control | PieceKind::Unknown => Some(token(true).normalized(false)),
                // Found once the prefix is there and spaces are escaped, so that what follows gets no prefix of its
                // own.
                PieceKind::UserDefined => Some(token(false).normalized(true)),
                PieceKind::Normal | PieceKind::Unused | PieceKind::Byte => None,
            }
        };
        self.pieces.iter().enumerate().filter_map(added).collect()
    }

    fn normalizer(&self) -> tokenizers::Result<NormalizerWrapper> {
        let mut steps: Vec<NormalizerWrapper> = Vec::new();
        if !self.charsmap.is_empty() {
            charsmap::check(&self.charsmap)?;
            steps.push(Precompiled::from(&self.charsmap)?.into());
        }
        if self.remove_extra_whitespaces {
            steps.push(Replace::new(ReplacePattern::Regex(format!(r"\A +|[ {SPACE}]+\z")), "")?.into());
            steps.push(Replace::new(ReplacePattern::Regex(" {2,}".to_owned()), " ")?.into());
        }
        if self.prefix == Prefix::Each {
            steps.push(self.each_prefix()?);
        }
        steps.push(Replace::new(" ", SPACE.to_string())?.into());
        Ok(Normalizers::new(steps).into())
    }

    /// Puts a space before texts. The texts of user-defined pieces are normalised too before they are looked for, and
    /// must not get it.
    fn each_prefix(&self) -> tokenizers::Result<NormalizerWrapper> {
        let own = self.pieces.iter().filter(|piece| piece.kind == PieceKind::UserDefined);
        let own: Vec<String> = own.map(|piece| escaped(&piece.text)).collect();
        if own.is_empty() {
            return Ok(Prepend::new(SPACE.to_string()).into());
        }
        let pattern = format!(r"\A(?!\z)(?!(?:{})\z)", own.join("|"));
        Ok(Replace::new(ReplacePattern::Regex(pattern), SPACE.to_string())?.into())
    }

    fn decoder(&self) -> tokenizers::Result<DecoderWrapper> {
        let mut steps: Vec<DecoderWrapper> =
            vec![Replace::new(SPACE.to_string(), " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
        if self.prefix != Prefix::Never {
            steps.push(Strip::new(' ', 1, 0).into());
        }
        Ok(Decoders::new(steps).into())
    }
}

/// A text as a regular expression that matches it alone.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut pattern, c| {
        if c.is_ascii_punctuation() {
            pattern.push('\\');
        }
        pattern.push(c);
        pattern
    })
}
