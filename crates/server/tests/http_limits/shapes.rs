//! Errors that no handler makes, and the headers of all responses.

use crate::toy::{KEY, Toy, access, head};
use calla_server::http::Limits;

#[tokio::test]
async fn unknown_paths_and_methods_say_what_was_meant() {
    let toy = Toy::start().await;
    for path in
        ["/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completions/", "/api/chat"]
    {
        let reply = toy.ask(head("POST", path, &["Host: localhost"])).await;
        assert_eq!(reply.status(), 404);
        assert!(reply.message().contains("did you mean /v1/chat/completions?"), "{reply:?}");
        assert_eq!(reply.json()["error"]["code"], "unknown_path");
    }
    let reply = toy.get("/v1/messages/batches", &["Host: localhost"]).await;
    assert_eq!((reply.status(), &reply.json()["error"]["type"]), (404, &"not_found_error".into()));
    assert_eq!(reply.json()["type"], "error");

    let reply = toy.ask(head("PATCH", "/v1/models", &["Host: localhost"])).await;
    assert_eq!((reply.status(), reply.header("allow").as_deref()), (405, Some("GET,HEAD,DELETE")));
    assert!(
        reply.message().contains("PATCH /v1/models is not allowed; the path takes GET,HEAD,DELETE")
    );
    let reply = toy.get("/v1/messages", &["Host: localhost"]).await;
    let json = reply.json();
    assert_eq!((reply.status(), &json["type"]), (405, &"error".into()));
    assert_eq!(json["error"]["type"], "invalid_request_error");
    assert_eq!(toy.ask(head("OPTIONS", "/v1/models", &["Host: localhost"])).await.status(), 405);
}

#[tokio::test]
async fn a_panic_is_an_error_of_that_request() {
    let toy = Toy::start().await;
    let mut client = toy.connect().await;
    for (path, kind) in [("/panic", "server_error"), ("/v1/messages/panic", "api_error")] {
        client.send(head("GET", path, &["Host: localhost"])).await;
        let reply = client.reply().await;
        assert_eq!((reply.status(), &reply.json()["error"]["type"]), (500, &kind.into()));
        assert!(!reply.body.contains("secret"), "{reply:?}");
    }
    client.send(head("GET", "/health", &["Host: localhost"])).await;
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn all_responses_have_the_headers_that_keep_browsers_from_guessing() {
    let toy = Toy::start_with(access(&[KEY], &[], &[]), Limits::default()).await;
    let key = format!("x-api-key: {KEY}");
    for (path, host, status) in [
        ("/v1/models", "localhost", 200),
        ("/nowhere", "localhost", 404),
        ("/panic", "localhost", 500),
        ("/v1/models", "evil.example", 403),
    ] {
        let reply = toy.get(path, &[&format!("Host: {host}"), &key]).await;
        assert_eq!(reply.status(), status);
        let expected = [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-store"),
        ];
        for (name, value) in expected {
            assert_eq!(reply.header(name).as_deref(), Some(value), "{path} {name}");
        }
        assert!(reply.header("server").unwrap().starts_with("calla/"));
        assert_eq!(reply.header("x-request-id").unwrap().len(), 36);
    }
    let page = toy.get("/", &["Host: localhost"]).await;
    assert_eq!(page.header("cache-control").as_deref(), Some("max-age=60"));
}

#[tokio::test]
async fn requests_have_numbers() {
    let toy = Toy::start().await;
    let reply = toy.get("/about", &["Host: localhost", "X-Request-Id: mine-1"]).await;
    assert_eq!(reply.header("x-request-id").as_deref(), Some("mine-1"));
    assert_eq!(reply.json()["id"], "mine-1");
    for bad in ["a b".to_owned(), "\x1b[31m".to_owned(), "é".to_owned(), "x".repeat(129)] {
        let sent = ["Host: localhost", &format!("X-Request-Id: {bad}")];
        let mut client = toy.connect().await;
        client.send(head("GET", "/about", &sent)).await;
        let reply = client.reply().await;
        // A control character is refused before there is a request.
        if reply.status() == 200 {
            assert_eq!(reply.header("x-request-id").unwrap().len(), 36, "{bad:?}");
            assert_eq!(reply.header("x-request-id").as_deref(), reply.json()["id"].as_str());
        } else {
            assert_eq!(reply.status(), 400, "{bad:?}");
        }
    }
    let reply =
        toy.ask(head("POST", "/v1/messages", &["Host: localhost", "X-Request-Id: mine-2"])).await;
    assert_eq!(reply.header("request-id").as_deref(), Some("mine-2"));
}

#[tokio::test]
async fn heads_are_bounded() {
    let toy = Toy::start().await;
    let long = format!("X-Long: {}", "x".repeat(70_000));
    let many: Vec<_> = (0..101).map(|index| format!("X-{index}: 1")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for headers in [&[long.as_str()][..], &many] {
        let mut client = toy.connect().await;
        client.send(head("GET", "/health", headers)).await;
        let rest = client.rest().await;
        assert!(rest.starts_with("HTTP/1.1 431 "), "{rest:.100}");
    }
    let mut client = toy.connect().await;
    client.send(head("GET", &format!("/{}", "x".repeat(65_600)), &["Host: localhost"])).await;
    let rest = client.rest().await;
    assert!(rest.starts_with("HTTP/1.1 414 ") || rest.starts_with("HTTP/1.1 431 "), "{rest:.100}");
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
    ] {
        let mut client = toy.connect().await;
        client.send(garbage).await;
        let rest = client.rest().await;
        assert!(rest.starts_with("HTTP/1.1 400 "), "{garbage:?}: {rest:?}");
    }
}
