//! `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`: adapters come and go while the server runs, only with
//! `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::post,
};
use http::StatusCode;
use proto::{ServeAdapterRequest, ServedAdapter};

use crate::{
    api::operation::{Answer, Body, Errors, Operation, Route, When},
    engine::adapters,
    error::{ApiError, Fault},
    gateway::Gateway,
    openai::{completion::log_unread, fields::Fields},
    server::body,
};

const RUNTIME: When = When {
    words: "with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`",
    holds: |config| config.access.enable_lora && config.access.allow_runtime_lora_updating,
    ..When::ALWAYS
};
const ERRORS: Errors = Errors::of(&[
    Fault::BadRequest,
    Fault::UserInput,
    Fault::NotFound,
    Fault::Timeout,
    Fault::TooLarge,
    Fault::Unavailable,
]);

/// Bytes of a name, which every list of models repeats.
const MAX_NAME: usize = 256;

/// Loads one.
pub const LOAD: Route = Route {
    path: "/v1/load_lora_adapter",
    handlers: || post(load),
    when: RUNTIME,
    operations: &[Operation {
        summary: "Loads a LoRA adapter and serves it",
        answer: Answer::Text("text/plain"),
        errors: ERRORS,
        ..Operation::post("load_lora_adapter", &[Body::LoadLoraAdapter])
    }],
};

/// Unloads one.
pub const UNLOAD: Route = Route {
    path: "/v1/unload_lora_adapter",
    handlers: || post(unload),
    when: RUNTIME,
    operations: &[Operation {
        summary: "Serves a LoRA adapter no longer; requests that run go on",
        answer: Answer::Text("text/plain"),
        errors: ERRORS,
        ..Operation::post("unload_lora_adapter", &[Body::UnloadLoraAdapter])
    }],
};

async fn load(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read_json(&gateway, &parts.headers, body).await?;
    let request = to_load(&body)?;
    let name = request.adapter.as_ref().map_or_else(String::new, |adapter| adapter.name.clone());
    adapters::serve(&gateway, request).await?;
    Ok((StatusCode::OK, format!("Success: LoRA adapter '{name}' added successfully.")).into_response())
}

async fn unload(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read_json(&gateway, &parts.headers, body).await?;
    let name = to_unload(&body)?;
    adapters::remove(&gateway, &name).await?;
    Ok((StatusCode::OK, format!("Success: LoRA adapter '{name}' removed successfully.")).into_response())
}

/// Reads a body: the adapter to load.
pub fn to_load(body: &[u8]) -> Result<ServeAdapterRequest, ApiError> {
    let mut fields = Fields::parse(body)?;
    let name = fields.text("lora_name")?.unwrap_or_default();
    let path = fields.text("lora_path")?.unwrap_or_default();
    let base_model_name = fields.text("base_model_name")?.unwrap_or_default();
    let in_place = fields.flag("load_inplace", false)?;
    // Whether experts' matrices are in one tensor is told from the adapter's files.
    let _: bool = fields.flag("is_3d_lora_weight", false)?;
    log_unread(&fields);
    if name.is_empty() || path.is_empty() {
        return Err(ApiError::new(Fault::UserInput, "Both 'lora_name' and 'lora_path' must be provided."));
    }
    if name.len() > MAX_NAME || name.contains(char::is_control) {
        let reason = format!("`lora_name` may have at most {MAX_NAME} bytes, and no control characters.");
        return Err(ApiError::field("lora_name", reason));
    }
    let adapter = ServedAdapter { name, path, base_model_name, ..ServedAdapter::default() };
    Ok(ServeAdapterRequest { adapter: Some(adapter), in_place })
}

/// Reads a body: the name of the adapter to unload.
pub fn to_unload(body: &[u8]) -> Result<String, ApiError> {
    let mut fields = Fields::parse(body)?;
    let name = fields.text("lora_name")?.unwrap_or_default();
    let _: Option<i64> = fields.whole("lora_int_id")?;
    log_unread(&fields);
    match name.is_empty() {
        true => Err(ApiError::new(Fault::UserInput, "'lora_name' needs to be provided to unload a LoRA adapter.")),
        false => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn bodies_name_adapters() {
        let load = |json: Value| to_load(json.to_string().as_bytes());
        let whole = json!({"lora_name": "a", "lora_path": "/a", "base_model_name": "b", "load_inplace": true});
        let request = load(whole).expect("a body");
        let adapter = request.adapter.expect("an adapter");
        assert_eq!((&*adapter.name, &*adapter.path, &*adapter.base_model_name), ("a", "/a", "b"));
        assert!(request.in_place && !load(json!({"lora_name": "a", "lora_path": "/a"})).expect("a body").in_place);
        for wrong in [json!({}), json!({"lora_name": "a"}), json!({"lora_name": "a", "lora_path": ""})] {
            let error = load(wrong).unwrap_err();
            assert!(error.message.contains("Both 'lora_name' and 'lora_path' must be provided."));
            assert_eq!(error.fault.name(), "InvalidUserInput");
        }
        for (name, is_fine) in
            [("é/x 1".to_owned(), true), ("n".repeat(256), true), ("n".repeat(257), false), ("a\nb".to_owned(), false)]
        {
            let read = load(json!({"lora_name": name, "lora_path": "/a"}));
            assert_eq!(read.err().and_then(|error| error.param), (!is_fine).then(|| "lora_name".to_owned()), "{name}");
        }
        let experts = |is_3d| load(json!({"lora_name": "a", "lora_path": "/a", "is_3d_lora_weight": is_3d}));
        assert_eq!(experts(json!("x")).unwrap_err().param.as_deref(), Some("is_3d_lora_weight"));
        assert!(experts(json!(false)).is_ok() && experts(json!(true)).is_ok());
        let unload = |json: Value| to_unload(json.to_string().as_bytes());
        assert_eq!(unload(json!({"lora_name": "a", "lora_int_id": 7})).expect("a body"), "a");
        assert!(unload(json!({})).unwrap_err().message.contains("'lora_name' needs to be provided"));
    }
}
