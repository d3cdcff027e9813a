//! The OpenAPI document of this server, made from the routes, the fields and the answers.

use http::StatusCode;
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, HttpMethod, InfoBuilder, OpenApi, OpenApiBuilder, PathsBuilder, Ref, RefOr,
    Required, ResponseBuilder, ServerBuilder,
    path::{OperationBuilder, ParameterBuilder, ParameterIn, PathItemBuilder},
    request_body::{RequestBody, RequestBodyBuilder},
    response::Response,
    schema::{AnyOfBuilder, ObjectBuilder, Schema, Type},
    security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
};

use super::{
    answers,
    fields::{self, Fate},
    operation::{Answer, Body, Errors, Method, Operation, Route},
    shape::{Need, Shape},
};
use crate::{config::Config, routes, server::auth};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
/// Names of the two ways to present a key.
const BEARER: &str = "bearer";
const API_KEY: &str = "api_key";

/// The document of a server with these settings: the routes that it has.
pub fn document(config: &Config) -> OpenApi {
    let routes = routes::ROUTES.iter().filter(|route| (route.when.holds)(config));
    let paths =
        routes.fold(PathsBuilder::new(), |paths, route| paths.path(route.documented_path(), path(route, config)));
    let root = &config.access.root_path;
    let servers = (!root.is_empty()).then(|| vec![ServerBuilder::new().url(root).build()]);
    OpenApiBuilder::new()
        .info(InfoBuilder::new().title("Quire").version(service_kit::VERSION).description(Some(
            "OpenAI's and Anthropic's API, with vLLM's fields. Fields that are not listed are ignored.",
        )))
        .servers(servers)
        .paths(paths)
        .components(Some(components().build()))
        .build()
}

fn path(route: &Route, config: &Config) -> utoipa::openapi::PathItem {
    let operations = route.operations.iter();
    let item = operations.fold(PathItemBuilder::new(), |item, operation| {
        let method = match operation.method {
            Method::Get => HttpMethod::Get,
            Method::Post => HttpMethod::Post,
            Method::Delete => HttpMethod::Delete,
        };
        item.operation(method, describe(route, operation, config))
    });
    item.build()
}

fn describe(route: &Route, operation: &Operation, config: &Config) -> OperationBuilder {
    let mut described =
        OperationBuilder::new().operation_id(Some(operation.id)).summary(Some(operation.summary)).tag(tag(route.path));
    for name in route.parameters() {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .schema(Some(Shape::Text.schema()));
        described = described.parameter(parameter);
    }
    for member in operation.query {
        let parameter = ParameterBuilder::new()
            .name(member.name)
            .parameter_in(ParameterIn::Query)
            .description(Some(member.help))
            .schema(Some(member.shape.schema()));
        described = described.parameter(parameter);
    }
    if !operation.bodies.is_empty() {
        described = described.request_body(Some(request_body(operation.bodies)));
    }
    described = described.response("200", answer(operation.answer));
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

fn answer(answer: Answer) -> Response {
    match answer {
        Answer::Empty => ResponseBuilder::new().description("Yes").build(),
        Answer::Json(name) => json_response("The answer", &[name]),
        Answer::Text(media_type) => {
            let content = ContentBuilder::new().schema(Some(Shape::Text.schema())).build();
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

fn components() -> ComponentsBuilder {
    let objects = answers::OBJECTS.iter();
    let all = objects.fold(ComponentsBuilder::new(), |all, (name, shape)| all.schema(*name, shape.schema()));
    let all = Body::ALL.iter().fold(all, |all, body| all.schema(body.name(), body_schema(*body)));
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    all.security_scheme(BEARER, SecurityScheme::Http(bearer))
        .security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new(auth::ANTHROPIC_KEY))))
}

/// A body's fields. Refused ones are named, not described.
fn body_schema(body: Body) -> ObjectBuilder {
    let mut object = ObjectBuilder::new().schema_type(Type::Object);
    let mut refused = Vec::new();
    for field in fields::of(body) {
        let help = match field.fate {
            Fate::Honoured => field.help.to_owned(),
            Fate::WithoutEffect(reason) => format!("Has no effect: {reason}"),
            Fate::Refused(_) => {
                refused.push(format!("`{}`", field.name));
                continue;
            }
        };
        object = object.property(field.name, field.shape.described(field.need, &help, field.json_default()));
        if field.need == Need::Always {
            object = object.required(field.name);
        }
    }
    if refused.is_empty() { object } else { object.description(Some(format!("Refused: {}", refused.join(", ")))) }
}
