//! TLS between hosts: both ends show a certificate of one authority.

use std::{fmt, io, path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    version::TLS13,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// What HTTP/2 negotiates.
const ALPN: &[u8] = b"h2";

/// Files of PEM that make a process a member of an engine.
#[derive(Clone, Copy, Debug)]
pub struct TlsFiles<'a> {
    /// This process's certificate, and those between it and the authority.
    pub certificate: &'a Path,
    /// The key of that certificate.
    pub key: &'a Path,
    /// The authorities that sign members' certificates.
    pub authorities: &'a Path,
}

/// A process's certificate, and whose it trusts. TLS 1.3 alone.
#[derive(Clone)]
pub struct Tls {
    chain: Vec<CertificateDer<'static>>,
    members: Arc<dyn ClientCertVerifier>,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// Which file is not as it must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsFile {
    /// [`TlsFiles::certificate`].
    Certificate,
    /// [`TlsFiles::key`].
    Key,
    /// [`TlsFiles::authorities`].
    Authorities,
}

/// Why files make no member.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct TlsError {
    /// The file at fault.
    pub file: TlsFile,
    /// What is wrong with it.
    pub problem: String,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// When one cannot be read or holds something else, and when the key is not the certificate's.
    pub fn read(files: &TlsFiles<'_>) -> Result<Self, TlsError> {
        let chain = certificates(TlsFile::Certificate, files.certificate)?;
        let key = PrivateKeyDer::from_pem_file(files.key).map_err(|error| unusable(TlsFile::Key, error))?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(TlsFile::Authorities, files.authorities)? {
            roots.add(certificate).map_err(|error| unusable(TlsFile::Authorities, error))?;
        }
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(roots);
        let members = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| unusable(TlsFile::Authorities, error))?;
        let server = server(&provider, members.clone(), (&chain, &key))?;
        let client = client(&provider, roots, (&chain, &key))?;
        Ok(Self { chain, members, server: Arc::new(server), client: Arc::new(client) })
    }

    /// Whether other members take this certificate now: its authority is theirs, it is neither expired nor of the
    /// future, and may be a client's. Peers judge for themselves; this tells before they do.
    ///
    /// # Errors
    /// When they do not.
    pub fn check(&self) -> Result<(), TlsError> {
        let (own, between) = self.chain.split_first().ok_or_else(|| unusable(TlsFile::Certificate, EMPTY))?;
        let verdict = self.members.verify_client_cert(own, between, UnixTime::now());
        verdict.map(drop).map_err(|error| unusable(TlsFile::Certificate, error))
    }

    /// Shakes hands as the listener: the peer must show a certificate.
    pub(crate) async fn accept(&self, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        Ok(TlsAcceptor::from(self.server.clone()).accept(socket).await?.into())
    }

    /// Shakes hands as the dialer of `host` (a name or an address), which the peer's certificate must be for.
    pub(crate) async fn connect(&self, host: &str, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(TlsConnector::from(self.client.clone()).connect(name, socket).await?.into())
    }
}

/// A chain with its key.
type Identity<'a> = (&'a Vec<CertificateDer<'static>>, &'a PrivateKeyDer<'static>);

fn server(
    provider: &Arc<CryptoProvider>,
    members: Arc<dyn ClientCertVerifier>,
    own: Identity<'_>,
) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unusable(TlsFile::Certificate, error))?
        .with_client_cert_verifier(members)
        .with_single_cert(own.0.clone(), own.1.clone_key())
        .map_err(not_a_pair)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

fn client(
    provider: &Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    own: Identity<'_>,
) -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unusable(TlsFile::Certificate, error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(own.0.clone(), own.1.clone_key())
        .map_err(not_a_pair)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

const EMPTY: &str = "holds no certificate";

fn certificates(file: TlsFile, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = read.map_err(|error| unusable(file, error))?;
    if chain.is_empty() { Err(unusable(file, EMPTY)) } else { Ok(chain) }
}

fn not_a_pair(error: rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => unusable(TlsFile::Key, "is not the key of the certificate"),
        other => unusable(TlsFile::Certificate, other),
    }
}

fn unusable(file: TlsFile, problem: impl ToString) -> TlsError {
    TlsError { file, problem: problem.to_string() }
}

/// Never the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}
