//! Files of tensors as PyTorch writes them: pickled by hand, opcode by opcode.

use std::io::Write;

use safetensors::{Dtype, View};
use zip::write::SimpleFileOptions;

/// The two forms.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Since 1.6: a ZIP archive.
    Archive,
    /// Before: pickles in a row, then the storages.
    Stream,
}

/// A pickle in the making.
pub struct Pickle(Vec<u8>);

impl Pickle {
    pub fn new() -> Self {
        Self(b"\x80\x02".to_vec())
    }

    pub fn op(&mut self, opcode: &[u8]) -> &mut Self {
        self.0.extend_from_slice(opcode);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.op(b"X").op(&(text.len() as u32).to_le_bytes()).op(text.as_bytes())
    }

    fn int(&mut self, n: usize) -> &mut Self {
        self.op(b"J").op(&(n as i32).to_le_bytes())
    }

    fn ints(&mut self, numbers: &[usize]) -> &mut Self {
        self.op(b"(");
        numbers.iter().for_each(|n| {
            self.int(*n);
        });
        self.op(b"t")
    }

    /// `_rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())`.
    fn tensor(&mut self, form: Form, key: usize, tensor: &impl View) -> &mut Self {
        let kind = match tensor.dtype() {
            Dtype::F32 => "FloatStorage",
            Dtype::F16 => "HalfStorage",
            _ => "BFloat16Storage",
        };
        let shape = tensor.shape();
        let mut strides = vec![1; shape.len()];
        (1..shape.len()).rev().for_each(|axis| strides[axis - 1] = strides[axis] * shape[axis]);
        self.op(b"ctorch._utils\n_rebuild_tensor_v2\n((").text("storage");
        self.op(format!("ctorch\n{kind}\n").as_bytes()).text(&key.to_string()).text("cpu");
        self.int(shape.iter().product());
        if let Form::Stream = form {
            self.op(b"N");
        }
        self.op(b"tQ").int(0).ints(shape).ints(&strides);
        self.op(b"\x89ccollections\nOrderedDict\n)RtR")
    }

    pub fn done(&mut self) -> Vec<u8> {
        self.op(b".");
        std::mem::take(&mut self.0)
    }
}

fn state_dict(form: Form, tensors: &[(&str, impl View)]) -> Vec<u8> {
    let mut pickle = Pickle::new();
    pickle.op(b"}(");
    for (key, (name, tensor)) in tensors.iter().enumerate() {
        pickle.text(name).tensor(form, key, tensor);
    }
    pickle.op(b"u").done()
}

/// A file of these tensors.
pub fn pickled(form: Form, tensors: &[(&str, impl View)]) -> Vec<u8> {
    let dict = state_dict(form, tensors);
    match form {
        Form::Archive => {
            let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
            let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
            let mut add = |name: &str, bytes: &[u8]| {
                archive.start_file(format!("archive/{name}"), stored).expect("an entry");
                archive.write_all(bytes).expect("written");
            };
            add("data.pkl", &dict);
            add("byteorder", b"little");
            tensors.iter().enumerate().for_each(|(key, (_, tensor))| add(&format!("data/{key}"), &tensor.data()));
            add("version", b"3\n");
            archive.finish().expect("an archive").into_inner()
        }
        Form::Stream => {
            let mut out = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.".to_vec();
            let mut info = Pickle::new();
            info.op(b"}(").text("protocol_version").int(1001).text("little_endian").op(b"\x88").text("type_sizes");
            info.op(b"}(").text("short").int(2).text("int").int(4).text("long").int(4);
            out.extend(info.op(b"uu").done());
            out.extend(dict);
            let mut keys = Pickle::new();
            keys.op(b"](");
            (0..tensors.len()).for_each(|key| {
                keys.text(&key.to_string());
            });
            out.extend(keys.op(b"e").done());
            for (_, tensor) in tensors {
                out.extend((tensor.shape().iter().product::<usize>() as u64).to_le_bytes());
                out.extend(&*tensor.data());
            }
            out
        }
    }
}
