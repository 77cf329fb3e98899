//! The socket of gRPC, and TLS.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::arguments::GrpcSettings;

/// The protocol of HTTP/2 in a TLS handshake.
const ALPN: &[u8] = b"h2";

/// An open socket for gRPC.
pub(crate) struct GrpcListener {
    pub(crate) address: IpAddr,
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
}

impl GrpcListener {
    /// Opens the socket, if one is configured.
    ///
    /// # Errors
    ///
    /// The error names the setting: an address that cannot be listened at, or a file of TLS that is none.
    pub(crate) async fn bind(settings: &GrpcSettings) -> Result<Option<Self>> {
        let Some(address) = settings.grpc else {
            return Ok(None);
        };
        let tls = acceptor(settings)?;
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("--grpc: cannot listen at {address}"))?;
        Ok(Some(Self {
            address: address.ip(),
            listener,
            tls,
        }))
    }
}

/// TLS as it is configured.
fn acceptor(settings: &GrpcSettings) -> Result<Option<TlsAcceptor>> {
    let (Some(certificate), Some(key)) = (&settings.grpc_tls_certificate, &settings.grpc_tls_key)
    else {
        return Ok(None);
    };
    let chain = certificates(certificate, "--grpc-tls-certificate")?;
    let read = PrivateKeyDer::from_pem_file(key);
    let key = read.with_context(|| format!("--grpc-tls-key: {} has no key", key.display()))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(
        tokio_rustls::rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .context("this build has no version of TLS")?;
    let builder = match &settings.grpc_tls_clients {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(path, "--grpc-tls-clients")? {
                let added = roots.add(root);
                added.with_context(|| format!("--grpc-tls-clients: {}", path.display()))?;
            }
            let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let verifier = verifier.context("--grpc-tls-clients: its certificates verify none")?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.context("--grpc-tls-key is not the key of --grpc-tls-certificate")?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

/// The certificates of a file, of which there is at least one.
fn certificates(path: &Path, setting: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let all: Vec<_> = all.with_context(|| format!("{setting}: cannot read {}", path.display()))?;
    ensure!(
        !all.is_empty(),
        "{setting}: {} has no certificate",
        path.display()
    );
    Ok(all)
}
