//! `adapter_config.json`: an adapter's ranks and scales, and which modules it has in place of the model's.

use std::path::PathBuf;

use regex::Regex;
use serde_json::Value;

use super::AdapterError;
use super::places::is_end;

/// Fields that change what an adapter computes, and what to do instead. They are unused where absent, null, false,
/// empty or this text.
const UNSUPPORTED: [(&str, &str, &str); 10] = [
    ("use_dora", "", "merge a DoRA adapter into its model"),
    ("bias", "none", "train without biases, or merge the adapter into its model"),
    ("lora_bias", "", "train without biases, or merge the adapter into its model"),
    ("trainable_token_indices", "", "merge the adapter into its model"),
    ("layer_replication", "", "serve the model that the replication gives"),
    ("alora_invocation_tokens", "", "an activated adapter cannot be served; train a plain one"),
    ("use_qalora", "", "train without QALoRA"),
    ("use_bdlora", "", "train without block-diagonal matrices"),
    ("arrow_config", "", "serve its experts as adapters of their own"),
    ("megatron_config", "", "convert the adapter to PEFT's names"),
];

/// What a module's adapter is scaled by, and its rank.
pub(super) struct Config {
    rank: Pattern,
    alpha: Pattern,
    use_rslora: bool,
    /// Modules in place of the model's: ends of their names.
    saved: Vec<String>,
    /// Parameters with adapters, beside those of linear modules: ends of their names.
    pub(super) parameters: Vec<String>,
}

/// A number that some modules have another value of.
struct Pattern {
    usual: f64,
    others: Vec<(Regex, f64)>,
}

impl Pattern {
    /// The first pattern that matches the end of the module's name counts.
    fn of(&self, module: &str) -> f64 {
        let other = self.others.iter().find(|(pattern, _)| pattern.is_match(module));
        other.map_or(self.usual, |(_, value)| *value)
    }
}

impl Config {
    /// Reads the contents of a file.
    pub(super) fn read(file: PathBuf, text: &[u8]) -> Result<Self, AdapterError> {
        let json: Value = serde_json::from_slice(text)
            .map_err(|error| AdapterError::Config { file: file.clone(), reason: error.to_string() })?;
        if let Some((field, _, instead)) = UNSUPPORTED.iter().find(|(field, unused, _)| is_used(&json[field], unused)) {
            return Err(AdapterError::Unsupported { file, field, instead });
        }
        Self::parse(&json).map_err(|reason| AdapterError::Config { file, reason })
    }

    fn parse(json: &Value) -> Result<Self, String> {
        let kind = json["peft_type"].as_str().unwrap_or("LORA");
        if !kind.eq_ignore_ascii_case("lora") {
            return Err(format!("peft_type is {kind:?}; only \"LORA\" adapters can be served"));
        }
        Ok(Self {
            rank: pattern(json, "r", "rank_pattern")?,
            alpha: pattern(json, "lora_alpha", "alpha_pattern")?,
            use_rslora: json["use_rslora"].as_bool().unwrap_or(false),
            saved: names(json, "modules_to_save")?,
            parameters: names(json, "target_parameters")?,
        })
    }

    /// A module in place of the model's that is none of `found`.
    pub(super) fn missing(&self, found: &[&str]) -> Option<&str> {
        let is_there = |name: &String| found.iter().any(|module| is_end(module, name));
        self.saved.iter().find(|name| !is_there(name)).map(String::as_str)
    }

    /// The rank that a module's matrices have.
    pub(super) fn rank(&self, module: &str) -> f64 {
        self.rank.of(module)
    }

    /// What a module's delta is multiplied by.
    pub(super) fn scale(&self, module: &str) -> f32 {
        let (alpha, rank) = (self.alpha.of(module), self.rank.of(module));
        (alpha / if self.use_rslora { rank.sqrt() } else { rank }) as f32
    }
}

/// Whether a field says anything.
fn is_used(value: &Value, unused: &str) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty() && text != unused,
        Value::Array(list) => !list.is_empty(),
        Value::Object(object) => !object.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// A list of names, which may be absent.
fn names(json: &Value, field: &str) -> Result<Vec<String>, String> {
    let refused = || format!("{field} must be a list of names, not {}", json[field]);
    match &json[field] {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) => list.iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(refused)).collect(),
        _ => Err(refused()),
    }
}

fn pattern(json: &Value, field: &str, others: &str) -> Result<Pattern, String> {
    let number = |value: &Value, name: &str| {
        // What is no number of the device makes every logit none, or leaves the adapter out.
        let number = value.as_f64().filter(|number| (*number as f32).is_normal() && *number > 0.0);
        number.ok_or_else(|| format!("{name} must be a positive number, not {value}"))
    };
    let usual = number(&json[field], field)?;
    let listed = match &json[others] {
        Value::Null => Vec::new(),
        Value::Object(object) => object.iter().collect(),
        other => return Err(format!("{others} must be an object, not {other}")),
    };
    let entry = |(key, value): (&String, &Value)| {
        let regex =
            Regex::new(&format!(r"^(.*\.)?({key})$")).map_err(|_| format!("{others}: {key:?} is no pattern"))?;
        Ok((regex, number(value, key)?))
    };
    let others = listed.into_iter().map(entry).collect::<Result<_, String>>()?;
    Ok(Pattern { usual, others })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(json: Value) -> Result<Config, String> {
        Config::parse(&json)
    }

    #[test]
    fn patterns_and_rank_stabilised_scales() {
        let plain = config(json!({"r": 8, "lora_alpha": 16, "rank_pattern": {"q_proj": 4, "layers\\.1\\.mlp.*": 16},
            "alpha_pattern": {"layers.1.mlp.up_proj": 8}}))
        .unwrap();
        let module = |name: &str| (plain.rank(name), plain.scale(name));
        assert_eq!(module("model.layers.0.self_attn.q_proj"), (4.0, 4.0));
        assert_eq!(module("model.layers.0.self_attn.k_proj"), (8.0, 2.0));
        assert_eq!(module("model.layers.1.mlp.up_proj"), (16.0, 0.5));
        let stable = config(json!({"r": 16, "lora_alpha": 16, "use_rslora": true})).unwrap();
        assert_eq!(stable.scale("x"), 4.0);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let refused = |json: Value, word: &str| {
            let reason = config(json).err().expect("a refusal");
            assert!(reason.contains(word), "{reason}");
        };
        refused(json!({"lora_alpha": 16}), "r must be");
        refused(json!({"r": 0, "lora_alpha": 16}), "r must be");
        refused(json!({"r": 8, "lora_alpha": "x"}), "lora_alpha");
        refused(json!({"r": 8, "lora_alpha": 1e300}), "lora_alpha must be");
        refused(json!({"r": 8, "lora_alpha": 1e-300}), "lora_alpha must be");
        refused(json!({"r": 8, "lora_alpha": 1, "rank_pattern": {"(": 4}}), "rank_pattern");
        refused(json!({"r": 8, "lora_alpha": 1, "peft_type": "IA3"}), "IA3");
        refused(json!({"r": 8, "lora_alpha": 1, "modules_to_save": "lm_head"}), "modules_to_save");
    }

    #[test]
    fn modules_in_place_of_the_models_must_be_there() {
        let saved = |modules: Value| config(json!({"r": 8, "lora_alpha": 1, "modules_to_save": modules})).unwrap();
        let found = ["model.embed_tokens", "lm_head"];
        assert_eq!(saved(Value::Null).missing(&[]), None);
        assert_eq!(saved(json!(["embed_tokens", "lm_head"])).missing(&found), None);
        assert_eq!(saved(json!(["model.embed_tokens"])).missing(&found), None);
        assert_eq!(saved(json!(["lm_head", "score"])).missing(&found), Some("score"));
        assert_eq!(saved(json!(["head"])).missing(&found), Some("head"));
    }

    #[test]
    fn fields_that_change_the_delta_are_refused_by_name() {
        let read = |field: &str, value: Value| {
            let json = json!({"r": 8, "lora_alpha": 16, "bias": "none", field: value});
            let read = Config::read("adapter_config.json".into(), json.to_string().as_bytes());
            read.map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(read("use_dora", json!(false)), Ok(()));
        for (field, value) in
            [("use_dora", json!(true)), ("bias", json!("all")), ("layer_replication", json!([[0, 2]]))]
        {
            assert!(read(field, value).unwrap_err().contains(field));
        }
    }
}
