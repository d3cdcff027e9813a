//! The OpenAPI document of this server, made from the routes, the fields and the answers.

use http::StatusCode;
use serde_json::Value;
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, HttpMethod, InfoBuilder, OpenApi, OpenApiBuilder, PathsBuilder, Ref, RefOr,
    Required, ResponseBuilder, ServerBuilder,
    extensions::Extensions,
    path::{OperationBuilder, ParameterBuilder, ParameterIn, PathItemBuilder},
    request_body::{RequestBody, RequestBodyBuilder},
    response::Response,
    schema::{AnyOfBuilder, ObjectBuilder, Schema, SchemaType, Type},
    security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
};

use super::{
    answers,
    fields::{self, Fate},
    operation::{Answer, Body, Errors, Method, Operation, Purpose, Route},
    shape::{Need, Served, Shape, schema::closed},
};
use crate::{
    config::Config,
    openai::{params::Limits, refused},
    responses::store,
    server::auth,
};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
/// Ways to follow all rules of a body together, at most: programs that draw values of schemas look at each. Rules
/// beyond that are told in words.
const MOST_WAYS: usize = 8;
/// Names of the two ways to present a key.
const BEARER: &str = "bearer";
const API_KEY: &str = "api_key";

/// A server that a document is of.
pub struct Serving<'a> {
    /// All routes that there are.
    pub routes: &'a [Route],
    /// Its settings.
    pub config: &'a Config,
    /// What bodies are checked against.
    pub limits: &'a Limits,
    /// What its model is run for, where that is known.
    pub purpose: Option<Purpose>,
}

/// The document of a server: the routes that it has, and what they take.
pub fn document(serving: &Serving<'_>) -> OpenApi {
    let config = serving.config;
    let is_there = |route: &&Route| route.when.is_here(config) && route.operations.iter().any(|one| serving.has(one));
    let routes = serving.routes.iter().filter(is_there);
    let paths =
        routes.fold(PathsBuilder::new(), |paths, route| paths.path(route.documented_path(), path(route, serving)));
    let root = &config.access.root_path;
    let servers = (!root.is_empty()).then(|| vec![ServerBuilder::new().url(root).build()]);
    OpenApiBuilder::new()
        .info(InfoBuilder::new().title("Quire").version(service_kit::VERSION).description(Some(
            "OpenAI's and Anthropic's API, with vLLM's fields. Fields that are not listed are ignored, but \
             /v1/messages refuses them.",
        )))
        .servers(servers)
        .paths(paths)
        .components(Some(components(serving.limits).build()))
        .build()
}

impl Serving<'_> {
    /// Whether the model can do what an operation's bodies ask for.
    fn has(&self, operation: &Operation) -> bool {
        let asks_for = operation.bodies.iter().find_map(|body| body.purpose());
        asks_for.is_none() || self.purpose.is_none() || asks_for == self.purpose
    }
}

fn path(route: &Route, serving: &Serving<'_>) -> utoipa::openapi::PathItem {
    let operations = route.operations.iter().filter(|operation| serving.has(operation));
    let item = operations.fold(PathItemBuilder::new(), |item, operation| {
        let method = match operation.method {
            Method::Get => HttpMethod::Get,
            Method::Post => HttpMethod::Post,
            Method::Delete => HttpMethod::Delete,
        };
        item.operation(method, describe(route, operation, serving))
    });
    item.build()
}

fn describe(route: &Route, operation: &Operation, Serving { config, limits, .. }: &Serving<'_>) -> OperationBuilder {
    let mut described =
        OperationBuilder::new().operation_id(Some(operation.id)).summary(Some(operation.summary)).tag(tag(route.path));
    for name in route.parameters() {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .schema(Some(parameter_shape(name).schema(limits)));
        described = described.parameter(parameter);
    }
    for member in operation.query {
        let parameter = ParameterBuilder::new()
            .name(member.name)
            .parameter_in(ParameterIn::Query)
            .description(Some(member.help))
            .schema(Some(member.shape.schema(limits)));
        described = described.parameter(parameter);
    }
    if !operation.bodies.is_empty() {
        described = described.request_body(Some(request_body(operation.bodies)));
    }
    described = described.response("200", answer(operation.answer, limits));
    for (status, response) in errors(operation.errors) {
        described = described.response(status.to_string(), response);
    }
    if route.is_guarded() && !config.access.api_key.is_empty() {
        let none: [String; 0] = [];
        described = described.response("401", json_response("The key is missing or wrong", &["Unauthorized"]));
        described = described.security(SecurityRequirement::new(BEARER, none.clone()));
        described = described.security(SecurityRequirement::new(API_KEY, none));
    }
    described
}

/// What a part of a path may be.
fn parameter_shape(name: &str) -> Shape {
    match name {
        "model" => Shape::Served(Served::Model),
        _ => Shape::Pattern(store::IDS),
    }
}

/// The group that a path stands in: `v1`, or `server`.
fn tag(path: &str) -> &'static str {
    if path.starts_with("/v1/messages") {
        "Anthropic"
    } else if path.starts_with("/v1/") {
        "OpenAI"
    } else {
        "Server"
    }
}

fn request_body(bodies: &[Body]) -> RequestBody {
    let names: Vec<_> = bodies.iter().map(|body| body.name()).collect();
    let content = ContentBuilder::new().schema(Some(any_of(&names))).build();
    RequestBodyBuilder::new().required(Some(Required::True)).content(JSON, content).build()
}

/// One of these objects.
fn any_of(names: &[&str]) -> RefOr<Schema> {
    match names {
        [name] => Ref::from_schema_name(*name).into(),
        names => names.iter().fold(AnyOfBuilder::new(), |any, name| any.item(Ref::from_schema_name(*name))).into(),
    }
}

fn answer(answer: Answer, limits: &Limits) -> Response {
    match answer {
        Answer::Empty => ResponseBuilder::new().description("Yes").build(),
        Answer::Json(name) => json_response("The answer", &[name]),
        Answer::Text(media_type) => {
            let content = ContentBuilder::new().schema(Some(Shape::Text.schema(limits))).build();
            ResponseBuilder::new().description("The answer").content(media_type, content).build()
        }
        Answer::Streamable(whole, events) => {
            let text = ObjectBuilder::new().schema_type(Type::String).description(Some(format!(
                "With `stream`: server-sent events, the data of each a {}",
                events.join(" or a ")
            )));
            ResponseBuilder::new()
                .description("The answer, or with `stream` its events")
                .content(JSON, ContentBuilder::new().schema(Some(any_of(whole))).build())
                .content(EVENTS, ContentBuilder::new().schema(Some(text)).build())
                .build()
        }
    }
}

/// A response for each status; faults that share one are one.
fn errors(errors: Errors) -> Vec<(u16, Response)> {
    let mut statuses: Vec<u16> = errors.faults.iter().map(|fault| errors.dialect.status(*fault)).collect();
    statuses.sort_unstable();
    statuses.dedup();
    let response = |status: u16| {
        let phrase = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        json_response(phrase.unwrap_or("Overloaded"), &[errors.dialect.object()])
    };
    statuses.into_iter().map(|status| (status, response(status))).collect()
}

fn json_response(description: &str, names: &[&str]) -> Response {
    let content = ContentBuilder::new().schema(Some(any_of(names))).build();
    ResponseBuilder::new().description(description).content(JSON, content).build()
}

/// The objects of answers and bodies.
pub fn components(limits: &Limits) -> ComponentsBuilder {
    let objects = answers::OBJECTS.iter();
    let all = objects.fold(ComponentsBuilder::new(), |all, (name, shape)| all.schema(*name, shape.schema(limits)));
    let all = Body::ALL.iter().fold(all, |all, body| all.schema(body.name(), body_schema(*body, limits)));
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    all.security_scheme(BEARER, SecurityScheme::Http(bearer))
        .security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new(auth::ANTHROPIC_KEY))))
}

/// A body's fields, and what they have to do with each other. Refused ones may be what asks for nothing.
fn body_schema(body: Body, limits: &Limits) -> ObjectBuilder {
    let mut object = ObjectBuilder::new().schema_type(Type::Object);
    for field in fields::of(body) {
        let schema = match field.fate {
            Fate::Honoured => field.shape.described(field.need, field.help, field.json_default(), limits),
            Fate::WithoutEffect(reason) => {
                field.shape.described(field.need, &format!("Has no effect: {reason}"), field.json_default(), limits)
            }
            Fate::Refused(instead) => refused_schema(body, field.name, instead),
        };
        object = object.property(field.name, schema);
        if field.need == Need::Always {
            object = object.required(field.name);
        }
    }
    if body.is_closed() {
        object = closed(object);
    }
    let mut told = Vec::new();
    let (mut held, mut ways) = (Vec::new(), 1);
    for rule in fields::rules::of(body) {
        if ways * rule.ways() <= MOST_WAYS {
            ways *= rule.ways();
            held.push(rule.schema());
        } else {
            told.push(rule.words);
        }
    }
    let told = (!told.is_empty()).then(|| format!("Rules: {}.", told.join("; ")));
    let all = (!held.is_empty()).then(|| Extensions::from_iter([("allOf", Value::from(held))]));
    object.description(told).extensions(all)
}

/// A field that is refused, unless its value asks for nothing.
fn refused_schema(body: Body, name: &str, instead: &str) -> RefOr<Schema> {
    let of_chats = matches!(body, Body::Chat | Body::Completion);
    let mut harmless = if of_chats { refused::harmless(name) } else { Vec::new() };
    harmless.push(Value::Null);
    let help = if instead.is_empty() { "Refused".to_owned() } else { format!("Refused: {instead}") };
    let object = ObjectBuilder::new().schema_type(SchemaType::AnyValue).enum_values(Some(harmless));
    object.description(Some(help)).into()
}
