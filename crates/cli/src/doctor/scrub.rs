//! Takes folders and user names out of what others will read.

use std::env;

/// Text without paths and without the user's name.
pub(super) fn scrub(text: &str) -> String {
    let user = ["USER", "LOGNAME", "USERNAME"].iter().find_map(|name| env::var(name).ok());
    without_user(&without_paths(text), user.as_deref())
}

/// Of each path only its last part.
fn without_paths(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    let mut before = ' ';
    while let Some(next) = rest.chars().next() {
        let starts = matches!(next, '/' | '~') && !before.is_alphanumeric() && before != '/';
        let is_url = before == ':' && rest.starts_with("//");
        if starts && !is_url {
            let end = rest.find(|c: char| c.is_whitespace() || "\"'`(),;|<>".contains(c));
            let path = &rest[..end.unwrap_or(rest.len())];
            // Several of a list: `/a:/b`.
            let parts: Vec<String> = path.split(':').map(last_part).collect();
            out += &parts.join(":");
            rest = &rest[path.len()..];
            before = '/';
            continue;
        }
        out.push(next);
        before = next;
        rest = &rest[next.len_utf8()..];
    }
    out
}

fn last_part(path: &str) -> String {
    match path.trim_end_matches('/').rsplit_once('/') {
        Some((_, last)) => format!(".../{last}"),
        None => path.to_owned(),
    }
}

/// Whole words that are the user's name, whatever their case. Names that are words of everybody stay.
fn without_user(text: &str, user: Option<&str>) -> String {
    let Some(user) = user.filter(|user| user.len() > 2 && !["root", "user"].contains(user)) else {
        return text.to_owned();
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\n']) {
        if is_word(c) {
            word.push(c);
            continue;
        }
        out += if word.eq_ignore_ascii_case(user) { "<user>" } else { &word };
        word.clear();
        out.push(c);
    }
    out.pop();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_their_folders() {
        for (text, expected) in [
            ("cannot read /home/jane/models/x: no", "cannot read .../x: no"),
            ("open \"/Users/jane/a b\"", "open \".../a b\""),
            ("at ~/models/x/", "at .../x"),
            ("in LD_LIBRARY_PATH=/opt/a:/home/jane/b", "in LD_LIBRARY_PATH=.../a:.../b"),
            ("12.5 GB/s of 3/4, and/or http://host/x", "12.5 GB/s of 3/4, and/or http://host/x"),
            ("nothing", "nothing"),
            ("/jane", ".../jane"),
            ("ends in /home/jane/ü", "ends in .../ü"),
        ] {
            assert_eq!(without_paths(text), expected);
        }
    }

    #[test]
    fn names_go_where_they_are_words() {
        let scrub = |text| without_user(text, Some("jane"));
        assert_eq!(scrub("jane's janet, Jane"), "<user>'s janet, <user>");
        assert_eq!(scrub(".../jane\n"), ".../<user>\n");
        assert_eq!(without_user("the root of it", Some("root")), "the root of it");
        assert_eq!(without_user("x", None), "x");
    }
}
