//! Host names, origins, keys.

use crate::toy::{KEY, Toy, access, head};
use calla_server::http::Limits;

const LISTED: &str = "https://chat.example.com";

#[tokio::test]
async fn only_our_own_hosts_are_answered() {
    let toy = Toy::start_with(access(&[], &["my-machine.local"], &[]), Limits::default()).await;
    let port = toy.address.port();
    let ours =
        ["localhost", "LocalHost:1", "127.0.0.1", "[::1]:80", "my-machine.local", "localhost."];
    for host in ours.map(str::to_owned).into_iter().chain([format!("127.0.0.1:{port}")]) {
        let reply = toy.get("/v1/models", &[&format!("Host: {host}")]).await;
        assert_eq!(reply.status(), 200, "{host}");
    }
    for host in
        ["evil.example", "localhost.evil.example", "10.0.0.1", "evil.example:80", "a@localhost"]
    {
        for path in ["/v1/models", "/", "/health"] {
            let reply = toy.get(path, &[&format!("Host: {host}")]).await;
            assert_eq!(reply.status(), 403, "{host}");
            assert!(reply.message().contains("--allowed-host"), "{reply:?}");
        }
    }
    let reply = toy.ask(head("POST", "/v1/messages", &["Host: evil.example"])).await;
    assert_eq!((reply.status(), &reply.json()["type"]), (403, &"error".into()));
}

#[tokio::test]
async fn the_host_is_one_and_is_also_that_of_the_request_line() {
    let toy = Toy::start().await;
    for headers in [&[][..], &["Host: localhost", "Host: localhost"], &["Host: a b"], &["Host: "]] {
        let reply = toy.get("/v1/models", headers).await;
        assert_eq!(reply.status(), 400, "{headers:?}");
        assert!(reply.message().contains("Host"), "{reply:?}");
    }
    let reply = toy.ask("GET /v1/models HTTP/1.0\r\n\r\n").await;
    assert_eq!(reply.status(), 200);
    assert_eq!(toy.get("http://evil.example/v1/models", &["Host: localhost"]).await.status(), 403);
    assert_eq!(toy.get("http://localhost/v1/models", &["Host: evil.example"]).await.status(), 403);
    assert_eq!(toy.get("http://localhost/v1/models", &["Host: localhost"]).await.status(), 200);
}

#[tokio::test]
async fn pages_of_other_origins_are_refused() {
    for keys in [&[][..], &[KEY]] {
        let toy = Toy::start_with(access(keys, &[], &[LISTED]), Limits::default()).await;
        let key = format!("Authorization: Bearer {KEY}");
        let evil = [
            "https://evil.example",
            "null",
            "http://localhost",
            "https://chat.example.com.evil.example",
        ];
        let cookie = "Cookie: session=1";
        for origin in evil.map(|origin| format!("Origin: {origin}")) {
            for credentials in [&[][..], &[cookie], &[cookie, key.as_str()]] {
                let with: Vec<_> = ["Host: localhost:8080", &origin]
                    .into_iter()
                    .chain(credentials.iter().copied())
                    .collect();
                for method in ["GET", "DELETE", "OPTIONS"] {
                    let reply = toy.ask(head(method, "/v1/models", &with)).await;
                    assert_eq!(reply.status(), 403, "{method} {with:?}");
                    assert!(reply.message().contains("--allowed-origin"), "{reply:?}");
                    assert_eq!(reply.header("access-control-allow-origin"), None);
                    assert_eq!(reply.header("vary").as_deref(), Some("Origin"));
                }
            }
        }
        let twice = ["Host: localhost", "Origin: https://chat.example.com", "Origin: null"];
        assert_eq!(toy.get("/v1/models", &twice).await.status(), 403);
        let script =
            ["Host: localhost", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", &key];
        assert_eq!(toy.get("/v1/models", &script).await.status(), 403);
        let link = ["Host: localhost", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"];
        assert_eq!(toy.get("/", &link).await.status(), 200);
    }
}

#[tokio::test]
async fn the_own_page_and_listed_ones_may_call() {
    let toy = Toy::start_with(access(&[KEY], &[], &[LISTED]), Limits::default()).await;
    let key = format!("x-api-key: {KEY}");
    let own = ["Host: localhost:8080", "Origin: http://localhost:8080", &key];
    let reply = toy.get("/v1/models", &own).await;
    assert_eq!((reply.status(), reply.header("access-control-allow-origin")), (200, None));

    let listed = format!("Origin: {LISTED}");
    let reply = toy.get("/v1/models", &["Host: localhost", &listed, &key]).await;
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.header("access-control-allow-origin").as_deref(), Some(LISTED));
    assert_eq!(reply.header("access-control-allow-credentials"), None);
    let reply = toy.get("/v1/models", &["Host: localhost", &listed]).await;
    assert_eq!(reply.status(), 401);
    assert_eq!(reply.header("access-control-allow-origin").as_deref(), Some(LISTED));
}

#[tokio::test]
async fn preflights_are_answered_for_listed_origins_without_a_key() {
    let toy = Toy::start_with(access(&[KEY], &[], &[LISTED]), Limits::default()).await;
    let ask = [
        "Host: localhost",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization, X-Stainless-Lang, x-evil, x-stainless-\"bad",
    ];
    let listed: Vec<_> = ask.into_iter().chain(["Origin: https://chat.example.com"]).collect();
    let reply = toy.ask(head("OPTIONS", "/v1/chat/completions", &listed)).await;
    assert_eq!(reply.status(), 204);
    assert_eq!(reply.header("access-control-allow-origin").as_deref(), Some(LISTED));
    assert_eq!(reply.header("vary").as_deref(), Some("Origin"));
    assert!(reply.header("access-control-allow-methods").unwrap().contains("POST"));
    let allowed = reply.header("access-control-allow-headers").unwrap();
    for name in [
        "authorization",
        "content-type",
        "x-api-key",
        "anthropic-version",
        "anthropic-beta",
        "X-Stainless-Lang",
    ] {
        assert!(allowed.split(", ").any(|allowed| allowed == name), "{name}: {allowed}");
    }
    assert!(!allowed.contains("evil") && !allowed.contains("bad"), "{allowed}");
    assert_eq!(reply.header("access-control-allow-credentials"), None);

    let evil: Vec<_> = ask.into_iter().chain(["Origin: https://evil.example"]).collect();
    let reply = toy.ask(head("OPTIONS", "/v1/chat/completions", &evil)).await;
    assert_eq!((reply.status(), reply.header("access-control-allow-headers")), (403, None));
}

#[tokio::test]
async fn keys_are_needed_where_they_are_set() {
    let other = "second-0123456789abcdef";
    let toy = Toy::start_with(access(&[KEY, other], &[], &[]), Limits::default()).await;
    let right = [
        format!("Authorization: Bearer {KEY}"),
        format!("authorization: bearer  {KEY}"),
        format!("x-api-key: {KEY}"),
        format!("X-Api-Key: {other}"),
        format!("Authorization: Bearer wrong\r\nx-api-key: {KEY}"),
    ];
    for header in right {
        assert_eq!(
            toy.get("/v1/models", &["Host: localhost", &header]).await.status(),
            200,
            "{header}"
        );
    }
    let wrong = [
        String::new(),
        format!("Authorization: {KEY}"),
        format!("Authorization: Basic {KEY}"),
        format!("Authorization: Bearer {KEY}x"),
        format!("Authorization: Bearer {}", &KEY[1..]),
        "Authorization: Bearer ".to_owned(),
        "x-api-key: ".to_owned(),
        format!("x-api-key: Bearer {KEY}"),
        format!("api-key: {KEY}"),
        format!("Cookie: x-api-key={KEY}"),
    ];
    for header in wrong {
        let headers = ["Host: localhost", if header.is_empty() { "Accept: */*" } else { &header }];
        for path in ["/v1/models", "/metrics", "/nowhere", "/%68ealth", "//", "/health/"] {
            let reply = toy.get(path, &headers).await;
            assert_eq!(reply.status(), 401, "{path} {header}");
            assert_eq!(reply.header("www-authenticate").as_deref(), Some("Bearer"));
            let error = &reply.json()["error"];
            assert_eq!(
                (&error["type"], &error["code"]),
                (&"authentication_error".into(), &"invalid_api_key".into())
            );
            assert!(!reply.body.contains(KEY), "{reply:?}");
        }
    }
    let reply = toy.ask(head("POST", "/v1/messages", &["Host: localhost"])).await;
    let json = reply.json();
    assert_eq!(
        (&json["type"], &json["error"]["type"]),
        (&"error".into(), &"authentication_error".into())
    );
    for path in ["/", "/health"] {
        assert_eq!(toy.get(path, &["Host: localhost"]).await.status(), 200);
        assert_eq!(toy.ask(head("POST", path, &["Host: localhost"])).await.status(), 401);
    }
}

#[tokio::test]
async fn owners_differ_by_key_and_do_not_show_it() {
    let other = "second-0123456789abcdef";
    let toy = Toy::start_with(access(&[KEY, other], &[], &[]), Limits::default()).await;
    let owner = async |header: &str| {
        let reply = toy.get("/about", &["Host: localhost", header]).await;
        reply.json()["owner"].as_str().unwrap().to_owned()
    };
    let first = owner(&format!("x-api-key: {KEY}")).await;
    assert_eq!(first, owner(&format!("Authorization: Bearer {KEY}")).await);
    assert_ne!(first, owner(&format!("x-api-key: {other}")).await);
    assert!(first.len() == 64 && !first.contains(KEY));

    let open = Toy::start().await;
    let reply = open.get("/about", &["Host: localhost", "x-api-key: anything"]).await;
    assert_eq!((reply.status(), &reply.json()["owner"]), (200, &"".into()));
    assert_eq!(reply.json()["port"], open.address.port());
}
