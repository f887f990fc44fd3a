//! The chat page: its files are part of the program.

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::LazyLock;

/// What the page may do: load its own files and talk to this server. Sent with each of its files.
const POLICY: &str = "default-src 'none'; script-src 'self'; \
    style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// The routes of the page: `/`, `/favicon.svg` and `/page/…`.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let fixed = |path: &'static str| get(async move |headers: HeaderMap| answer(path, &headers));
    let named = async |Path(name): Path<String>, headers: HeaderMap| {
        answer(&format!("/page/{name}"), &headers)
    };
    Router::new()
        .route("/", fixed("/"))
        .route("/favicon.svg", fixed("/favicon.svg"))
        .route("/page/{name}", get(named))
}

/// A file with the headers that keep it safe and fresh; without its bytes where the browser has them.
fn answer(path: &str, request: &HeaderMap) -> Response {
    let Some(file) = page_file(path) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let known = request.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let headers = [
        (CONTENT_TYPE, file.content_type),
        (ETAG, file.etag.as_str()),
        // A new program has new files: ask each time, which costs nothing on the way to oneself.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    if known.is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == file.etag)) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, file.bytes).into_response()
}

/// A file of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PageFile {
    /// The path that it is served at.
    path: &'static str,
    /// Its media type, for `Content-Type`.
    content_type: &'static str,
    /// What it holds.
    bytes: &'static [u8],
    /// A strong validator, for `ETag`: quoted, and the same as long as the bytes are.
    etag: String,
}

/// The file at a path of a request, if it is one of the page's.
fn page_file(path: &str) -> Option<&'static PageFile> {
    PAGE_FILES.iter().find(|file| file.path == path)
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// A file as it is listed below: the path that it is served at, its type, its bytes.
type Listed = (&'static str, &'static str, &'static [u8]);

/// Lists files of `page/` that are served below `/page/`.
macro_rules! scripts {
    ($($name:literal),* $(,)?) => {
        [$((
            concat!("/page/", $name),
            SCRIPT,
            include_bytes!(concat!("../page/", $name)) as &[u8],
        )),*]
    };
}

const SCRIPTS: &[Listed] = &scripts![
    "api.js",
    "app.js",
    "conversation.js",
    "dom.js",
    "health.js",
    "inline.js",
    "markdown.js",
    "measures.js",
    "messages.js",
    "reply.js",
    "settings.js",
    "sse.js",
    "store.js",
    "tools.js",
    "transfer.js",
];

const OTHERS: [Listed; 4] = [
    ("/", HTML, include_bytes!("../page/index.html")),
    ("/favicon.svg", IMAGE, include_bytes!("../page/favicon.svg")),
    ("/page/style.css", STYLE, include_bytes!("../page/style.css")),
    ("/page/docs.css", STYLE, include_bytes!("../page/docs.css")),
];

static PAGE_FILES: LazyLock<Vec<PageFile>> = LazyLock::new(|| {
    let hashed = |&(path, content_type, bytes): &Listed| {
        let hash = blake3::hash(bytes).to_hex();
        PageFile { path, content_type, bytes, etag: format!("\"{}\"", &hash[..16]) }
    };
    OTHERS.iter().chain(SCRIPTS).map(hashed).collect()
});

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn text(path: &str) -> &'static str {
        std::str::from_utf8(page_file(path).unwrap().bytes).unwrap()
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let mut names = Vec::new();
        for entry in folder.read_dir().unwrap() {
            names.push(entry.unwrap().file_name().into_string().unwrap());
        }
        assert_eq!(names.len(), PAGE_FILES.len(), "{names:?}");
        assert_eq!(page_file("/nothing"), None);
        assert_eq!(page_file("/page/../src/page.rs"), None);
    }

    #[test]
    fn imports_and_links_lead_to_files_that_are_served() {
        let mut found = 0;
        for file in PAGE_FILES.iter().filter(|file| file.content_type == SCRIPT) {
            for line in text(file.path).lines().filter(|line| line.starts_with("import ")) {
                let name = line.split('"').nth(1).unwrap().strip_prefix("./").unwrap();
                assert!(page_file(&format!("/page/{name}")).is_some(), "{}: {name}", file.path);
                found += 1;
            }
        }
        for piece in text("/").split(['"', '\'']).filter(|piece| piece.starts_with('/')) {
            assert!(page_file(piece).is_some(), "/: {piece}");
            found += 1;
        }
        assert!(found > 20, "only {found} imports and links found");
    }

    #[test]
    fn nothing_needs_a_looser_policy() {
        let html = text("/");
        for inline in ["style=", "<style", "<script>", "javascript:", "http:", "https:"] {
            assert!(!html.contains(inline), "index.html has {inline:?}");
        }
        let is_listener = |word: &str| word.starts_with("on") && word.contains('=');
        assert_eq!(html.split_whitespace().find(|word| is_listener(word)), None);
        for file in PAGE_FILES.iter().filter(|file| file.content_type == SCRIPT) {
            let parsing =
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("];
            for word in parsing {
                assert!(!text(file.path).contains(word), "{} has {word}", file.path);
            }
        }
    }

    #[test]
    fn a_file_that_the_browser_has_is_not_sent_again() {
        let first = answer("/", &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        assert!(
            first.headers()[CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap()
                .contains("default-src 'none'")
        );
        let mut request = HeaderMap::new();
        request.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
        assert_eq!(answer("/", &request).status(), StatusCode::NOT_MODIFIED);
        request.insert(IF_NONE_MATCH, axum::http::HeaderValue::from_static("\"other\""));
        assert_eq!(answer("/", &request).status(), StatusCode::OK);
        assert_eq!(answer("/page/none.js", &request).status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn etags_are_quoted_and_differ() {
        for (i, file) in PAGE_FILES.iter().enumerate() {
            assert!(
                file.etag.len() == 18 && file.etag.starts_with('"') && file.etag.ends_with('"')
            );
            assert!(PAGE_FILES[..i].iter().all(|other| other.etag != file.etag));
        }
    }
}
