//! Which of a folder's or repository's files hold the weights, decided by their names.

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `.safetensors`.
    Safetensors,
    /// `pytorch_model.bin`: a pickle beside raw storages.
    Torch,
    /// `.gguf`: weights, configuration and tokenizer in one file.
    Gguf,
}

impl Format {
    /// What `--load-format` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Torch => "pt",
            Self::Gguf => "gguf",
        }
    }
}

/// The files to read, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    /// These files, sorted.
    Files(Format, Vec<String>),
    /// The files that this index names.
    Index(Format, String),
    /// Several GGUF files, each a whole model: somebody has to choose. Of a split one the first part, sorted.
    OneOf(Vec<String>),
    /// Nothing that can be read.
    Nothing,
}

/// Picks among the names of a folder, in the order in which the reference library looks for them: safetensors, PyTorch,
/// GGUF; of each the usual single file, then the index of a sharded one. Safetensors under other names count when there
/// is nothing else and the folder is no adapter's. Second copies (`consolidated*`, `original/`), adapters and
/// projectors of images are passed over.
pub fn pick<'a>(names: impl IntoIterator<Item = &'a str>) -> Pick {
    let mut names: Vec<&str> = names.into_iter().filter(|name| !name.contains('/') && !name.starts_with('.')).collect();
    names.sort_unstable();
    let named = |wanted: &str| names.binary_search(&wanted).is_ok();
    let ending = |ending: &str| -> Vec<String> {
        let wanted = |name: &&&str| name.ends_with(ending) && !is_other(name);
        names.iter().filter(wanted).map(|name| (*name).to_owned()).collect()
    };
    for (format, single, index) in [
        (Format::Safetensors, "model.safetensors", "model.safetensors.index.json"),
        (Format::Torch, "pytorch_model.bin", "pytorch_model.bin.index.json"),
    ] {
        if named(single) {
            return Pick::Files(format, vec![single.to_owned()]);
        }
        if named(index) {
            return Pick::Index(format, index.to_owned());
        }
    }
    let gguf = ending(".gguf").into_iter().filter(|name| split(name).is_none_or(|split| split.number == 1));
    match gguf.collect::<Vec<_>>() {
        none if none.is_empty() => match ending(".safetensors") {
            others if others.is_empty() || named("adapter_config.json") => Pick::Nothing,
            others => Pick::Files(Format::Safetensors, others),
        },
        one if one.len() == 1 => Pick::Files(Format::Gguf, one.iter().flat_map(|name| parts(name)).collect()),
        several => Pick::OneOf(several),
    }
}

/// Files that end like weights and are not the model's, or are the model's a second time.
fn is_other(name: &str) -> bool {
    ["consolidated", "adapter_model", "mmproj"].iter().any(|beginning| name.starts_with(beginning))
}

/// The part of a split GGUF file that a name says: `m-00001-of-00003.gguf`.
struct Split<'a> {
    prefix: &'a str,
    number: u32,
    count: u32,
}

fn split(name: &str) -> Option<Split<'_>> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    Some(Split { prefix, number: digits(number)?, count: digits(count)? })
}

/// All parts of the GGUF file that `first` begins, itself included.
pub(crate) fn parts(first: &str) -> Vec<String> {
    match split(first) {
        Some(Split { prefix, number: 1, count }) => {
            (1..=count.min(MAX_PARTS)).map(|n| format!("{prefix}-{n:05}-of-{count:05}.gguf")).collect()
        }
        _ => vec![first.to_owned()],
    }
}

/// More than any model has; bounds what a name can make us look for.
const MAX_PARTS: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn files(format: Format, names: &[&str]) -> Pick {
        Pick::Files(format, names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn the_usual_names_win() {
        use Format::{Gguf, Safetensors, Torch};
        let check = |names: &[&str], expected: Pick| assert_eq!(pick(names.iter().copied()), expected, "{names:?}");
        let index = |format, name: &str| Pick::Index(format, name.to_owned());
        let (safe, torch) = ("model.safetensors.index.json", "pytorch_model.bin.index.json");
        check(&["pytorch_model.bin", "model.safetensors", "a.gguf"], files(Safetensors, &["model.safetensors"]));
        check(&["consolidated.00.pth", safe, "consolidated.safetensors", torch], index(Safetensors, safe));
        check(
            &["consolidated.safetensors", "x/y.safetensors", "b.safetensors"],
            files(Safetensors, &["b.safetensors"]),
        );
        check(&["pytorch_model.bin", torch, "consolidated.safetensors"], files(Torch, &["pytorch_model.bin"]));
        check(&[torch, "a.gguf"], index(Torch, torch));
        check(&["a.gguf", "b.safetensors"], files(Gguf, &["a.gguf"]));
        check(&["adapter_config.json", "b.safetensors"], Pick::Nothing);
        check(&["a.gguf", "mmproj-a.gguf", "config.json"], files(Gguf, &["a.gguf"]));
        check(&["b.gguf", "a.gguf"], Pick::OneOf(vec!["a.gguf".to_owned(), "b.gguf".to_owned()]));
        check(&["adapter_model.safetensors", "x.bin", "optimizer.pt"], Pick::Nothing);
    }

    #[test]
    fn split_files_belong_together() {
        let names = ["m-00002-of-00003.gguf", "m-00001-of-00003.gguf"];
        let all = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];
        assert_eq!(pick(names), files(Format::Gguf, &all));
        assert_eq!(parts("m-00002-of-00003.gguf"), ["m-00002-of-00003.gguf"]);
        assert_eq!(parts("m-1-of-3.gguf"), ["m-1-of-3.gguf"]);
    }
}
