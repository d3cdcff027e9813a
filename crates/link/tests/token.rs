//! Links between hosts: a stranger gets nothing.

use link::{Address, Link, LinkError, LinkOptions, Listener, Token};
use proto::{Hello, TokenBatch};

type Either = Link<TokenBatch, TokenBatch>;

const SECRET: &str = "the-token-of-this-engine";

fn showing(token: Option<&str>) -> LinkOptions {
    LinkOptions { token: token.map(|text| Token::new(text).unwrap()), ..LinkOptions::default() }
}

fn hello() -> Hello {
    link::hello("worker-svc", "steps", "")
}

async fn dial(address: &Address, token: Option<&str>) -> Result<Either, LinkError> {
    link::connect(address, hello(), &showing(token)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_shows_the_token_gets_a_link() {
    let address = Address::Grpc("127.0.0.1:0".to_owned());
    let mut listener = Listener::bind(&address, hello(), showing(Some(SECRET))).await.unwrap();
    let address = listener.address().clone();
    for stranger in [None, Some("another-engine's-token"), Some("the-token-of-this-enginf")] {
        match dial(&address, stranger).await {
            Err(LinkError::Refused { reason }) => assert!(reason.contains("--link-token-file"), "{reason}"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("let in: {stranger:?}"),
        }
    }
    // None of them became a link: the first one to be accepted is the one that shows it.
    let (dialled, accepted) = tokio::join!(dial(&address, Some(SECRET)), listener.accept());
    let (mut dialled, mut accepted): (Either, Either) = (dialled.unwrap(), accepted.unwrap());
    let batch = TokenBatch { token: vec![7], ..TokenBatch::default() };
    dialled.sender.send(&batch).await.unwrap();
    assert_eq!(accepted.receiver.recv().await.unwrap(), batch);
}

/// What the folder's permissions guard needs no token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_of_the_host_ask_for_none() {
    let folder = tempfile::tempdir().unwrap();
    for form in ["ring:", "grpc+unix:"] {
        let address: Address = format!("{form}{}/x.sock", folder.path().display()).parse().unwrap();
        let mut listener = Listener::bind(&address, hello(), showing(Some(SECRET))).await.unwrap();
        let (dialled, accepted) = tokio::join!(dial(&address, None), listener.accept());
        let (_dialled, _accepted): (Either, Either) = (dialled.unwrap(), accepted.unwrap());
    }
}
