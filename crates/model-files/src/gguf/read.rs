//! Parses the header. Every length is checked against what the file can still hold before anything is allocated.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use super::{Gguf, TensorInfo, TensorType, Value};
use crate::FilesError;

/// Tensors begin at multiples of this where the metadata do not say.
const ALIGNMENT: u64 = 32;
/// ggml has no more dimensions than this.
const MAX_DIMS: u32 = 4;
/// Lists of lists of lists: nobody writes more.
const MAX_DEPTH: u32 = 4;

/// Why parsing stopped.
enum Fault {
    Read(std::io::Error),
    Damaged(String),
    Unsupported(String),
}

type Parsed<T> = Result<T, Fault>;

fn damaged<T>(reason: impl Into<String>) -> Parsed<T> {
    Err(Fault::Damaged(reason.into()))
}

pub(super) fn header(path: &Path) -> Result<Gguf, FilesError> {
    let parse = || {
        let file = File::open(path).map_err(Fault::Read)?;
        let len = file.metadata().map_err(Fault::Read)?.len();
        Parser { input: BufReader::new(file), len, at: 0 }.header()
    };
    let file = path.to_owned();
    match parse() {
        Ok((metadata, tensors)) => Ok(Gguf { files: vec![file], metadata, tensors }),
        Err(Fault::Read(source)) => Err(FilesError::Read { file, source }),
        Err(Fault::Damaged(reason)) => Err(FilesError::Damaged { file, reason }),
        Err(Fault::Unsupported(what)) => Err(FilesError::Unsupported { file, what }),
    }
}

struct Parser<R> {
    input: R,
    /// Length of the file.
    len: u64,
    /// Bytes read so far.
    at: u64,
}

impl<R: Read> Parser<R> {
    fn header(mut self) -> Parsed<(HashMap<String, Value>, Vec<TensorInfo>)> {
        if &self.bytes::<4>()? != b"GGUF" {
            return damaged("it does not begin with GGUF");
        }
        match self.u32()? {
            2 | 3 => {}
            version if version.swap_bytes() <= 3 => return Err(Fault::Unsupported("it is big-endian".to_owned())),
            version => {
                let what = format!("its format has version {version}; expected 2 or 3 (convert the model again)");
                return Err(Fault::Unsupported(what));
            }
        }
        let (tensors, entries) = (self.u64()?, self.u64()?);
        // A tensor takes at least 24 bytes, an entry 13.
        let (tensors, entries) = (self.count(tensors, 24)?, self.count(entries, 13)?);
        let mut metadata = HashMap::new();
        for _ in 0..entries {
            let key = self.text()?;
            let kind = self.u32()?;
            metadata.insert(key, self.value(kind, 0)?);
        }
        let alignment = match metadata.get("general.alignment").map(Value::as_whole) {
            None => ALIGNMENT,
            Some(Some(alignment)) if (1..=1 << 20).contains(&alignment) => alignment,
            Some(_) => return damaged("general.alignment makes no sense"),
        };
        let infos: Vec<Raw> = (0..tensors).map(|_| self.tensor()).collect::<Parsed<_>>()?;
        let data = self.at.next_multiple_of(alignment);
        let placed = infos.into_iter().map(|raw| raw.place(data, self.len)).collect::<Parsed<_>>()?;
        Ok((metadata, placed))
    }

    fn tensor(&mut self) -> Parsed<Raw> {
        let name = self.text()?;
        let dims = self.u32()?;
        if dims > MAX_DIMS {
            return damaged(format!("tensor {name:?} has {dims} dimensions"));
        }
        let mut shape: Vec<u64> = (0..dims).map(|_| self.u64()).collect::<Parsed<_>>()?;
        shape.reverse();
        Ok(Raw { name, shape, kind: TensorType::from_number(self.u32()?), offset: self.u64()? })
    }

    fn value(&mut self, kind: u32, depth: u32) -> Parsed<Value> {
        Ok(match kind {
            0 => Value::Uint(self.bytes::<1>()?[0].into()),
            1 => Value::Int(i8::from_le_bytes(self.bytes()?).into()),
            2 => Value::Uint(u16::from_le_bytes(self.bytes()?).into()),
            3 => Value::Int(i16::from_le_bytes(self.bytes()?).into()),
            4 => Value::Uint(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.bytes()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => Value::Bool(self.bytes::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 => self.list(depth)?,
            10 => Value::Uint(self.u64()?),
            11 => Value::Int(i64::from_le_bytes(self.bytes()?)),
            12 => Value::Float(f64::from_le_bytes(self.bytes()?)),
            _ => return damaged(format!("a metadata value has type {kind}")),
        })
    }

    fn list(&mut self, depth: u32) -> Parsed<Value> {
        if depth >= MAX_DEPTH {
            return damaged("lists are nested too deeply");
        }
        let (kind, count) = (self.u32()?, self.u64()?);
        let count = self.count(count, 1)?;
        (0..count).map(|_| self.value(kind, depth + 1)).collect::<Parsed<_>>().map(Value::List)
    }

    fn text(&mut self) -> Parsed<String> {
        let len = self.u64()?;
        let mut bytes = vec![0; self.count(len, 1)?];
        self.fill(&mut bytes)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// A count of things of at least `least` bytes each, if the file can hold as many.
    fn count(&self, count: u64, least: u64) -> Parsed<usize> {
        let rest = self.len.saturating_sub(self.at);
        match usize::try_from(count) {
            Ok(n) if count.checked_mul(least).is_some_and(|bytes| bytes <= rest) => Ok(n),
            _ => damaged(format!("it ends early: {count} things cannot follow byte {}", self.at)),
        }
    }

    fn u32(&mut self) -> Parsed<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Parsed<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn bytes<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Parsed<()> {
        self.at += bytes.len() as u64;
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Fault::Damaged("it ends within the header".to_owned()),
            _ => Fault::Read(error),
        })
    }
}

/// A tensor as the header has it.
struct Raw {
    name: String,
    shape: Vec<u64>,
    kind: TensorType,
    /// From the begin of the data.
    offset: u64,
}

impl Raw {
    /// Computes where the tensor lies, and checks that it lies inside the file. Of types that are not decoded the size
    /// is not known; nobody reads them.
    fn place(self, data: u64, len: u64) -> Parsed<TensorInfo> {
        let Self { name, shape, kind, offset } = self;
        let row = shape.last().copied().unwrap_or(1);
        let elements = shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent));
        let (elements_of_block, bytes_of_block) =
            kind.block().map_or((1, 0), |block| (block.elements as u64, block.bytes as u64));
        if !row.is_multiple_of(elements_of_block) {
            return damaged(format!("rows of tensor {name:?} are no whole blocks of {}", kind.name()));
        }
        let bytes = elements.and_then(|n| (n / elements_of_block).checked_mul(bytes_of_block));
        let start = data.checked_add(offset);
        let end = start.zip(bytes).and_then(|(start, bytes)| start.checked_add(bytes));
        match (start, bytes, end) {
            (Some(start), Some(bytes), Some(end)) if end <= len => Ok(TensorInfo {
                name,
                shape: shape.into_iter().map(|extent| extent as usize).collect(),
                kind,
                part: 0,
                start: start as usize,
                bytes: bytes as usize,
            }),
            (_, _, Some(end)) => damaged(format!("tensor {name:?} ends at byte {end}, but the file has only {len}")),
            _ => damaged(format!("tensor {name:?} has an impossible size")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GgmlType;

    /// Writes a file of metadata entries (type number and bytes of the value) and tensors (dimensions, type, offset),
    /// then `data` bytes.
    fn file(entries: &[(&str, u32, Vec<u8>)], tensors: &[(&str, &[u64], u32, u64)], data: usize) -> Vec<u8> {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend((entries.len() as u64).to_le_bytes());
        for (key, kind, value) in entries {
            out.extend(text(key));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        for (name, dims, kind, offset) in tensors {
            out.extend(text(name));
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32) + data, 0);
        out
    }

    /// The folder lives as long as what was read.
    fn read(bytes: &[u8]) -> (Result<Gguf, FilesError>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, bytes).unwrap();
        (Gguf::read(&path), dir)
    }

    fn refused(bytes: &[u8], word: &str) {
        let message = read(bytes).0.expect_err("must be refused").to_string();
        assert!(message.contains("m.gguf") && message.contains(word), "{message} lacks {word}");
    }

    fn good() -> Vec<u8> {
        let mut list = 5u32.to_le_bytes().to_vec();
        list.extend(2u64.to_le_bytes());
        list.extend([1i32.to_le_bytes(), (-2i32).to_le_bytes()].concat());
        let entries = [("a", 4, vec![7, 0, 0, 0]), ("b", 8, b"\x02\0\0\0\0\0\0\0hi".to_vec()), ("c", 9, list)];
        file(&entries, &[("w", &[64, 2], 2, 0), ("v", &[2], 0, 96)], 104)
    }

    #[test]
    fn a_header_is_read() {
        let (gguf, _dir) = read(&good());
        let gguf = gguf.unwrap();
        assert_eq!((gguf.whole("a").unwrap(), gguf.text("b").unwrap()), (Some(7), Some("hi")));
        assert_eq!(gguf.numbers("c").unwrap(), Some(vec![1.0, -2.0]));
        assert_eq!(gguf.flag("zz").unwrap(), None);
        let tensor = gguf.tensor("w").unwrap();
        assert_eq!(
            (&tensor.shape[..], tensor.kind, tensor.bytes),
            (&[2, 64][..], TensorType::Blocks(GgmlType::Q4_0), 72)
        );
        assert_eq!(gguf.floats(gguf.tensor("v").unwrap()).unwrap(), [0.0, 0.0]);
        assert!(gguf.floats(tensor).unwrap_err().to_string().contains("Q4_0"));
        assert!(gguf.flag("a").unwrap_err().to_string().contains("\"a\" must be true or false"));
    }

    #[test]
    fn nonsense_is_refused() {
        refused(b"GGML", "does not begin");
        refused(b"GGUF\x01\0\0\0", "version 1");
        refused(b"GGUF\0\0\0\x03", "big-endian");
        refused(b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0", "ends early");
        refused(&good()[..good().len() - 1], "the file has only");
        refused(&file(&[], &[("w", &[33], 2, 0)], 64), "no whole blocks");
        refused(&file(&[], &[("w", &[u64::MAX, 2], 0, 0)], 64), "impossible size");
        refused(&file(&[], &[("w", &[1, 1, 1, 1, 1], 0, 0)], 64), "5 dimensions");
        refused(&file(&[("a", 99, vec![])], &[], 0), "type 99");
        let deep: Vec<u8> = (0..6).flat_map(|_| [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).collect();
        refused(&file(&[("a", 9, deep)], &[], 0), "nested");
        refused(&file(&[("general.alignment", 4, vec![0; 4])], &[], 0), "alignment");
    }

    /// Cut anywhere and with any byte changed: a header or an error, never a panic, and tensors stay inside the file.
    #[test]
    fn damage_never_panics() {
        let good = good();
        for end in 0..good.len() {
            assert!(read(&good[..end]).0.is_err(), "{end}");
        }
        for at in 0..good.len() {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] ^= flip;
                if let (Ok(gguf), _) = read(&bytes) {
                    assert!(gguf.tensors().iter().all(|tensor| tensor.start + tensor.bytes <= bytes.len()));
                }
            }
        }
    }
}
