//! TLS, with and without certificates of clients.

use rcgen::{CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use vllm_proto::inference_client::InferenceClient;

use super::{Running, ask};

/// A certificate with its key, in PEM.
struct Signed {
    certificate: String,
    key: String,
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("a certificate")
}

fn signed(by: &CertifiedIssuer<'static, KeyPair>, purpose: ExtendedKeyUsagePurpose) -> Signed {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.extended_key_usages = vec![purpose];
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, by).expect("a certificate");
    Signed {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

#[tokio::test]
async fn clients_need_the_certificates_that_are_asked_for() {
    let folder = std::env::temp_dir().join(format!("motet-grpc-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let write = |name: &str, content: &str| {
        let path = folder.join(name);
        std::fs::write(&path, content).expect("a file");
        path.display().to_string()
    };
    let (ours, other) = (authority(), authority());
    let of_server = signed(&ours, ExtendedKeyUsagePurpose::ServerAuth);
    let arguments = format!(
        "--grpc-tls-certificate {} --grpc-tls-key {} --grpc-tls-clients {}",
        write("server.pem", &of_server.certificate),
        write("server.key", &of_server.key),
        write("clients.pem", &ours.pem()),
    );
    let server = Running::start(&arguments, "").await;
    let served = async |identity: Option<&Signed>| {
        let mut tls = ClientTlsConfig::new()
            .domain_name("localhost")
            .ca_certificate(Certificate::from_pem(ours.pem()));
        if let Some(Signed { certificate, key }) = identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        let channel = Channel::from_shared(format!("https://{}", server.address));
        let channel = channel.expect("an address").tls_config(tls).expect("TLS");
        // A rejected certificate is seen when the first request is sent.
        let channel = channel.connect().await.ok()?;
        let answer = InferenceClient::new(channel).generate(ask(&[1], 4)).await;
        answer.ok()?.into_inner().outputs
    };
    let known = signed(&ours, ExtendedKeyUsagePurpose::ClientAuth);
    let unknown = signed(&other, ExtendedKeyUsagePurpose::ClientAuth);
    assert_eq!(
        served(Some(&known)).await.expect("it is served").num_tokens,
        4
    );
    assert!(served(Some(&unknown)).await.is_none());
    assert!(served(None).await.is_none());
    let plain = Channel::from_shared(format!("http://{}", server.address));
    let plain = plain.expect("an address").connect().await;
    if let Ok(plain) = plain {
        let answer = InferenceClient::new(plain).generate(ask(&[1], 4)).await;
        answer.expect_err("it speaks TLS");
    }
    server.stop().await;
    std::fs::remove_dir_all(folder).expect("it is there");
}

#[tokio::test]
async fn files_that_are_none_are_named() {
    use clap::Parser;
    use motet_server::arguments::Arguments;
    use motet_server::grpc::FleetFacts;
    use motet_server::serve::Listeners;

    let words = "server --oracle --grpc 127.0.0.1:0 --grpc-tls-certificate /none.pem \
                 --grpc-tls-key /none.key";
    let settings = Arguments::parse_from(words.split_whitespace()).grpc;
    let http = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a socket");
    let opened = Listeners::from(http)
        .grpc(&settings, FleetFacts::default())
        .await;
    let error = opened.err().expect("there are no files").to_string();
    assert_eq!(error, "--grpc-tls-certificate: cannot read /none.pem");
}
