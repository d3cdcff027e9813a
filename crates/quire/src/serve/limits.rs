//! Refuses limits that cannot hold, where processes would only move them.

use std::path::Path;

use anyhow::bail;

use super::flags::{Settings, Value};

/// Checks what was asked for, by itself and against the model.
pub(super) fn check(settings: &Settings, model: &Path) -> anyhow::Result<()> {
    check_length(settings, model)?;
    check_step(settings)?;
    check_graphs(settings)?;
    check_adapters(settings)
}

/// A length is one that the model can do.
fn check_length(settings: &Settings, model: &Path) -> anyhow::Result<()> {
    let config = model_spec::ConfigFile::of_model(model)?;
    let (wanted, possible) = (settings.number::<usize>("max-model-len"), model_spec::context_len(&config).ok());
    match wanted.zip(possible) {
        Some((wanted, possible)) if wanted > possible => {
            bail!("--max-model-len {wanted}: the model can do {possible} tokens; pass at most that, or auto")
        }
        // A model that does not say is the worker's business.
        _ => Ok(()),
    }
}

/// A step has room for the sequences that are to run.
fn check_step(settings: &Settings) -> anyhow::Result<()> {
    let (tokens, sequences) =
        (settings.number::<u64>("max-num-batched-tokens"), settings.number::<u64>("max-num-seqs"));
    match tokens.zip(sequences) {
        Some((tokens, sequences)) if tokens < sequences => bail!(
            "--max-num-batched-tokens {tokens}: each of --max-num-seqs {sequences} sequences takes a token of a step; \
             pass at least {sequences}, or fewer sequences"
        ),
        // One alone moves the other's default.
        _ => Ok(()),
    }
}

/// CUDA graphs are not both configured and disabled.
fn check_graphs(settings: &Settings) -> anyhow::Result<()> {
    let asks = |name: &&str| settings.get(name).is_some_and(|value| *value != Value::Bool(false));
    let of_captures = ["single-kernel-decode", "cudagraph-capture-sizes", "max-cudagraph-capture-size"];
    match of_captures.iter().find(|name| asks(name)).filter(|_| asks(&"enforce-eager")) {
        Some(name) => {
            bail!("--{name} configures CUDA graphs, which --enforce-eager disables; drop one of the two")
        }
        None => Ok(()),
    }
}

/// Adapters are not named where none is served.
fn check_adapters(settings: &Settings) -> anyhow::Result<()> {
    let enabled = settings.get("enable-lora").is_some_and(|value| *value == Value::Bool(true));
    match ["lora-modules", "lora-dir"].iter().find(|name| !enabled && settings.get(name).is_some()) {
        Some(name) => bail!("--{name} names adapters, which --enable-lora serves; add it"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::flags::parse;
    use super::*;

    fn step(line: &str) -> Result<(), String> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        check_step(&parse(&words).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_step_has_a_token_for_each_sequence() {
        let error = step("--max-num-batched-tokens 16 --max-num-seqs 64").unwrap_err();
        assert!(error.starts_with("--max-num-batched-tokens 16: ") && error.contains("at least 64"), "{error}");
        for fine in
            ["", "--max-num-batched-tokens 16", "--max-num-seqs 4096", "--max-num-batched-tokens 64 --max-num-seqs 64"]
        {
            assert_eq!(step(fine), Ok(()), "{fine}");
        }
    }

    #[test]
    fn what_is_recorded_is_not_said_where_nothing_is() {
        let captures = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            check_graphs(&parse(&words).unwrap()).map_err(|error| error.to_string())
        };
        for name in ["--single-kernel-decode", "--cudagraph-capture-sizes 4", "--max-cudagraph-capture-size 8"] {
            let error = captures(&format!("--enforce-eager {name}")).unwrap_err();
            let flag = name.split(' ').next().unwrap();
            assert!(error.starts_with(flag) && error.contains("--enforce-eager"), "{error}");
            assert_eq!(captures(name), Ok(()));
        }
        assert_eq!(captures("--enforce-eager --no-single-kernel-decode"), Ok(()));
    }

    #[test]
    fn adapters_are_not_named_in_vain() {
        let adapters = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            check_adapters(&parse(&words).unwrap()).map_err(|error| error.to_string())
        };
        for names in ["--lora-modules a=/a", "--lora-dir /a"] {
            let error = adapters(names).unwrap_err();
            assert!(error.contains(names.split(' ').next().unwrap()) && error.contains("--enable-lora"), "{error}");
            assert!(adapters(&format!("{names} --no-enable-lora")).is_err());
            assert_eq!(adapters(&format!("{names} --enable-lora")), Ok(()));
        }
    }
}
