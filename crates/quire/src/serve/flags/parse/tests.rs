//! Command lines and files of flags, good and bad.

use super::*;
use crate::serve::flags::Settings;
use crate::serve::flags::{To, passed_to};

fn parsed(line: &str) -> Result<Settings, FlagError> {
    parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
}

fn passed(process: To, line: &str) -> String {
    passed_to(process, &parsed(line).unwrap()).join(" ")
}

#[test]
fn spellings_of_vllm_are_understood() {
    for (line, process, words) in [
        ("m -tp 2", To::SCHEDULER, "--tensor-parallel-size=2"),
        ("-tp=2 m", To::WORKER, "--tensor-parallel-size=2"),
        ("--max_model_len 16k", To::SCHEDULER, "--max-model-len=16000"),
        ("--max-model-len=-1", To::SCHEDULER, "--max-model-len=-1"),
        ("--max-model-len auto", To::WORKER, "--max-model-len=auto"),
        ("--max-model-len -1 --max-num-seqs 3", To::SCHEDULER, "--max-model-len=-1 --max-num-seqs=3"),
        ("--no-enable-prefix-caching", To::SCHEDULER, "--enable-prefix-caching=false"),
        ("--enable-prefix-caching=False", To::SCHEDULER, "--enable-prefix-caching=false"),
        ("--enable-log-requests --no-enable-log-requests", To::GATEWAY, ""),
        ("--served-model-name a b --port 1", To::GATEWAY, "--served-model-name=a --served-model-name=b"),
        ("--max-logprobs -1", To::GATEWAY, "--max-logprobs=-1"),
        ("--allowed-origins [\"*\"]", To::GATEWAY, "--allowed-origins=[\"*\"]"),
        ("--max-num-seqs 3", To::DETOKENIZER, ""),
        ("--disable-cascade-attn", To::WORKER, "--disable-cascade-attn"),
        ("--no-disable-cascade-attn", To::WORKER, ""),
    ] {
        assert_eq!(passed(process, line), words, "{line}");
    }
    assert_eq!(parsed("org/name --port 1").unwrap().text("model"), Some("org/name"));
    assert_eq!(parsed("--model org/name").unwrap().text("model"), Some("org/name"));
}

#[test]
fn members_of_json_flags_are_joined() {
    let line = r#"--override-generation-config {"top_k":5} --override-generation-config.temperature 0.5"#;
    assert_eq!(passed(To::GATEWAY, line), r#"--override-generation-config={"top_k":5,"temperature":0.5}"#);
    let deep = "--default-chat-template-kwargs.a.b x --default-chat-template-kwargs.a.c true";
    assert_eq!(passed(To::GATEWAY, deep), r#"--default-chat-template-kwargs={"a":{"b":"x","c":true}}"#);
}

#[test]
fn defaults_of_unsupported_flags_are_fine() {
    for line in ["--cpu-offload-gb 0 --swap-space 4", "--kv-offloading-size 0"] {
        assert_eq!(parsed(line), Ok(Settings::default()), "{line}");
    }
}

#[test]
fn flags_without_effect_are_reported_with_the_reason() {
    let settings = parsed("--trust-remote-code -O3 --port 1 --no-disable-log-requests").unwrap();
    let said = settings.without_effect();
    assert_eq!(
        said[0],
        "command line: --trust-remote-code makes no difference: code from a model's repository is never run"
    );
    assert!(said[1].starts_with("command line: -O makes no difference: "), "{}", said[1]);
    assert_eq!(said.len(), 3);
}

#[test]
fn refusals_name_the_flag() {
    for (line, message) in [
        (
            "--data-parallel-start-rank 2",
            "command line: --data-parallel-start-rank 2 is not supported (only 0): for engines on several machines",
        ),
        ("-dp 0", "command line: --data-parallel-size 0: must be a whole number from 1 to 1024"),
        ("-pp 0", "command line: --pipeline-parallel-size 0: must be a whole number from 1 to 64"),
        ("--speculative-config.method ngram", "command line: --speculative-config.method is not supported: spec"),
        ("--max-model-length 3", "command line: there is no flag --max-model-length; did you mean --max-model-len?"),
        (
            "--swap-space 16",
            "command line: --swap-space 16 is not supported (only 0 or 4): KV blocks stay in device memory",
        ),
        ("--max-loras 0", "command line: --max-loras 0: must be a whole number from 1 to 1024"),
        ("--master-port", "command line: --master-port needs a value"),
        ("-cc.mode 3", "command line: -cc.mode is not supported"),
        ("-O9", "command line: -O 9 is not supported"),
        ("--frobnicate", "command line: there is no flag --frobnicate"),
        ("--no-port", "command line: there is no flag --no-port"),
        ("--port", "command line: --port needs a value"),
        ("--port --host x", "command line: --port needs a value"),
        ("a b", "`b` is one argument too many: the model is `a` already"),
        ("--dtype int3", "command line: --dtype int3: must be one of: auto, float32, float, bfloat16, float16, half"),
        ("--config /nowhere.yaml", "--config /nowhere.yaml: No such file or directory (os error 2)"),
        ("--max-num-seqs 65536", "command line: --max-num-seqs 65536: must be a whole number from 1 to 65535"),
        (
            "--max-num-batched-tokens 2G",
            "command line: --max-num-batched-tokens 2G: must be a number from 1 to 1048576",
        ),
        (
            "--gpu-memory-utilization 1.5",
            "command line: --gpu-memory-utilization 1.5: must be a number above 0, up to 1",
        ),
        ("--ssl-cert-reqs 3", "command line: --ssl-cert-reqs 3: must be a whole number from 0 to 2"),
        ("--allowed-origins *", "command line: --allowed-origins *: must be JSON"),
        ("--enable-prefix-caching=maybe", "command line: --enable-prefix-caching maybe: must be true or false"),
    ] {
        let found = parsed(line).unwrap_err().to_string();
        assert!(found.starts_with(message), "{line}: {found}");
    }
}

#[test]
fn the_command_line_wins_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    let text = "model: org/name\nport: 9000\nmax_num_seqs: 7\nenable-prefix-caching: false\n\
                served-model-name: [a, b]\noverride-generation-config: {top_k: 3}\nhost: null\n\
                swap-space: 4\n";
    std::fs::write(&path, text).unwrap();
    let settings = parsed(&format!("--port 1 --config {}", path.display())).unwrap();
    assert_eq!((settings.text("port"), settings.text("model")), (Some("1"), Some("org/name")));
    assert_eq!(passed_to(To::SCHEDULER, &settings).join(" "), "--enable-prefix-caching=false --max-num-seqs=7");
    assert_eq!(settings.list("served-model-name"), ["a", "b"]);
    assert_eq!(settings.text("override-generation-config"), Some("{\"top_k\":3}"));
    assert_eq!(settings.text("host"), None);
    let other = parsed(&format!("other --config {}", path.display())).unwrap();
    assert_eq!(other.text("model"), Some("other"));
}

#[test]
fn a_file_with_mistakes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    for (text, part) in [
        ("prt: 1", "a.yaml: there is no flag --prt; did you mean --port?"),
        ("port: [", "--config"),
        ("- port", "must be an object of flags"),
        ("enable-eplb: true", "a.yaml: --enable-eplb true is not supported: "),
        ("config: b.yaml", "names another file"),
        ("port: x", "a.yaml: --port x: must be a whole number"),
    ] {
        std::fs::write(&path, text).unwrap();
        let found = parsed(&format!("--config {}", path.display())).unwrap_err().to_string();
        assert!(found.contains(part), "{text}: {found}");
    }
}
