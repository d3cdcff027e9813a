//! TLS files: HTTPS with a certificate of one's own. The key beside this file protects nothing.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio_rustls::TlsConnector;

use crate::{client::request, stage::Stage};

fn file(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/tls").join(name).display().to_string()
}

#[tokio::test]
async fn certificates_are_served() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    let flags = [format!("--ssl-certfile={certificate}"), format!("--ssl-keyfile={key}")];
    let stage = Stage::without_engine(&[&flags[0], &flags[1]]).await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificate).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stage.client.connect().await).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request(Method::GET, "/version", Bytes::new())).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(!answer.into_body().collect().await.unwrap().to_bytes().is_empty());
    connection.abort();
}

#[tokio::test]
async fn files_that_are_no_certificates_are_named() {
    let key = file("key.pem");
    for (certificate, key, named) in
        [("/nowhere.pem", key.as_str(), "--ssl-certfile"), (key.as_str(), key.as_str(), "--ssl-certfile")]
    {
        let flags = [format!("--ssl-certfile={certificate}"), format!("--ssl-keyfile={key}")];
        let stage = Stage::without_engine(&[&flags[0], &flags[1]]).await;
        let error = stage.gateway.await.unwrap().expect_err("refused").to_string();
        assert!(error.contains(named), "{error}");
    }
}
