//! Talks to a Hugging Face hub: which files a revision has, and where each one is.

use std::time::Duration;

use reqwest::{
    Client, Method, RequestBuilder, Response, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_LENGTH, ETAG, HeaderMap, LOCATION},
    redirect::Policy,
};
use serde::Deserialize;

use crate::{Options, SourceError, name::is_name};

const REDIRECTS: usize = 5;

/// A client of one hub.
pub(crate) struct Hub<'a> {
    pub(crate) options: &'a Options,
    /// Follows no redirects, so that the hub's own headers can be read.
    direct: Client,
    /// Follows redirects to where large files are stored.
    following: Client,
}

/// One file of a repository.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile<'a> {
    pub(crate) name: &'a str,
    /// Its address at the hub; storage addresses expire, this one does not.
    pub(crate) url: String,
    /// Name of the blob. A SHA-256 when it has 64 digits.
    pub(crate) etag: String,
    pub(crate) bytes: u64,
}

/// What a branch, tag or commit of a repository is.
#[derive(Deserialize)]
pub(crate) struct Revision {
    /// The commit.
    pub(crate) sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Revision {
    /// Names of its files.
    pub(crate) fn names(self) -> Vec<String> {
        self.siblings.into_iter().map(|file| file.rfilename).collect()
    }
}

impl<'a> Hub<'a> {
    pub(crate) fn new(options: &'a Options) -> Result<Self, SourceError> {
        let client = |policy: Policy| {
            let mut builder = Client::builder()
                .redirect(policy)
                .connect_timeout(Duration::from_secs(10))
                .read_timeout(Duration::from_secs(30))
                .user_agent(concat!("quire/", env!("CARGO_PKG_VERSION")));
            if is_loopback(&options.endpoint) {
                builder = builder.no_proxy();
            }
            builder.build().map_err(|error| SourceError::network(&options.endpoint, &error))
        };
        Ok(Self { options, direct: client(Policy::none())?, following: client(Policy::limited(REDIRECTS))? })
    }

    /// Asks which commit the revision is and which files it has.
    pub(crate) async fn revision(&self, id: &str) -> Result<Revision, SourceError> {
        let url = format!("{}/api/models/{id}/revision/{}", self.options.endpoint, escape(&self.options.revision));
        let response = self.send(Method::GET, &url, id).await?;
        let text = response.bytes().await.map_err(|error| SourceError::network(&url, &error))?;
        let answer = |what: &str| SourceError::Answer { url: url.clone(), what: what.to_owned() };
        let revision: Revision = serde_json::from_slice(&text).map_err(|error| answer(&error.to_string()))?;
        if !is_name(&revision.sha) {
            return Err(answer("the commit is not a file name"));
        }
        Ok(revision)
    }

    /// Asks for a file's size and blob name.
    pub(crate) async fn locate<'n>(
        &self,
        id: &str,
        commit: &str,
        name: &'n str,
    ) -> Result<RemoteFile<'n>, SourceError> {
        let name_in_url = name.split('/').map(escape).collect::<Vec<_>>().join("/");
        let url = format!("{}/{id}/resolve/{commit}/{name_in_url}", self.options.endpoint);
        let response = self.send(Method::HEAD, &url, id).await?;
        let headers = response.headers();
        let header = |names: [&str; 2]| names.into_iter().find_map(|name| text_of(headers, name));
        let etag = header(["x-linked-etag", ETAG.as_str()]).map(|etag| {
            let etag = etag.strip_prefix("W/").unwrap_or(etag);
            etag.trim_matches('"').to_owned()
        });
        let bytes = header(["x-linked-size", CONTENT_LENGTH.as_str()]).and_then(|size| size.parse().ok());
        match (etag.filter(|etag| is_name(etag)), bytes) {
            (Some(etag), Some(bytes)) => Ok(RemoteFile { name, url, etag, bytes }),
            _ => Err(SourceError::Answer { url, what: "the answer names no usable etag and size".to_owned() }),
        }
    }

    /// Sends a request and follows redirects within the hub (renamed models); one to elsewhere is an answer.
    async fn send(&self, method: Method, url: &str, id: &str) -> Result<Response, SourceError> {
        let mut at = url.to_owned();
        for _ in 0..REDIRECTS {
            let request = self.authorised(self.direct.request(method.clone(), &at));
            let response = request.send().await.map_err(|error| SourceError::network(&at, &error))?;
            let next = text_of(response.headers(), LOCATION.as_str()).filter(|next| next.starts_with('/'));
            match (response.status(), next) {
                (status, Some(next)) if status.is_redirection() => {
                    at = Url::parse(&at).and_then(|base| base.join(next)).map_or_else(|_| at.clone(), String::from);
                }
                (status, _) if status.is_success() || status.is_redirection() => return Ok(response),
                _ => return Err(self.refusal(&at, id, &response)),
            }
        }
        Err(SourceError::Answer { url: url.to_owned(), what: "too many redirects".to_owned() })
    }

    /// Starts reading a file from byte `from` on.
    pub(crate) async fn read(&self, url: &str, from: u64) -> Result<Response, SourceError> {
        let mut request = self.authorised(self.following.get(url));
        if from > 0 {
            request = request.header(reqwest::header::RANGE, format!("bytes={from}-"));
        }
        request.send().await.map_err(|error| SourceError::network(url, &error))
    }

    fn authorised(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.options.token {
            Some(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    fn refusal(&self, url: &str, id: &str, response: &Response) -> SourceError {
        let (id, endpoint) = (id.to_owned(), self.options.endpoint.clone());
        let code = text_of(response.headers(), "x-error-code").unwrap_or_default();
        match (response.status(), code) {
            (_, "RevisionNotFound") => SourceError::RevisionNotFound { id, revision: self.options.revision.clone() },
            (StatusCode::FORBIDDEN, _) | (_, "GatedRepo") => {
                let remedy = match self.options.token {
                    Some(_) => "wait until access is granted to the account of the token given",
                    None => "pass --hf-token or set HF_TOKEN",
                };
                SourceError::Gated { id, endpoint, remedy }
            }
            (StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED, _) => SourceError::NotFound { id, endpoint },
            (status, _) => SourceError::Status { url: url.to_owned(), status: status.as_u16() },
        }
    }
}

fn text_of<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// A proxy cannot reach this machine's loopback.
fn is_loopback(endpoint: &str) -> bool {
    let host = Url::parse(endpoint).ok().and_then(|url| url.host_str().map(str::to_owned));
    matches!(host.as_deref(), Some("localhost" | "127.0.0.1" | "[::1]"))
}

/// Percent-encodes a path segment; the hub wants `refs/pr/1` as one segment.
fn escape(segment: &str) -> String {
    let mut text = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}
