//! Rearranges a client's messages so that any template of the family takes them, and so that a history that
//! only grows is a prompt that only grows.

use crate::{Content, Message, Part, Role};

/// What instructions within a conversation are marked with: the form that coding agents use for theirs.
const REMINDER: [&str; 2] = ["<system-reminder>\n", "\n</system-reminder>"];

/// Line that Claude Code puts before its instructions, with a hash that changes with each request:
/// `x-anthropic-billing-header: cc_version=2.1.38.c39; cc_entrypoint=cli; cch=4873d;`.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

/// Rearranges messages that the family's templates would refuse; leaves all others as they are.
///
/// * Leading system and developer messages become one system message, joined by an empty line.
/// * A later one stays in place, as text between `<system-reminder>` and `</system-reminder>` in a message that is
///   not the assistant's: the one before it, else the one after it. Between two replies of the assistant it
///   becomes a user message of its own. It is not moved to the front, which would change the beginning of
///   the prompt, and it leaves a tool result one: a user message in its place would end the tool loop to the
///   template, which then drops the loop's thinking.
/// * If no real user message stands before the first reply, an empty one is put behind the leading instructions.
/// * Lines at the head of the instructions that name the client's version and billing are taken away: they change
///   with each request, and would change all of the prompt behind them.
///
/// White space around contents that are joined is taken away, as the templates do with each whole content.
///
/// **Append-only.** A request ends where the assistant's reply begins, so the messages of a later one are those
/// of an earlier one, a reply, and what follows it. All of the above depends only on what stands
/// between two replies (the last two rules: on what stands before the first one). So the earlier messages,
/// normalised, are a prefix of the later ones, normalised, and but for thinking that the template drops the
/// same holds for the prompts.
pub fn normalise(messages: &[Message]) -> Vec<Message> {
    let leading = messages.iter().take_while(|message| is_instruction(message)).count();
    let (leading, rest) = messages.split_at(leading);
    let mut out: Vec<Message> = Vec::with_capacity(rest.len() + 2);
    out.extend(instructions(leading));
    let place = out.len();
    let is_reply = |message: &Message| message.role == Role::Assistant;
    for run in rest.chunk_by(|a, b| is_reply(a) == is_reply(b)) {
        match is_reply(&run[0]) {
            true => out.extend_from_slice(run),
            false => fold(run, &mut out),
        }
    }
    // The first message was there when the first request was made, whoever speaks in it.
    let first_request = out.iter().skip(1).take_while(|message| !is_reply(message)).count() + 1;
    if !out.iter().take(first_request).any(is_real_user) {
        out.insert(place, Message::new(Role::User, ""));
    }
    out
}

fn is_instruction(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

/// A user turn that is more than a tool result in disguise, as the family's templates judge it.
fn is_real_user(message: &Message) -> bool {
    if message.role != Role::User {
        return false;
    }
    let text = message.content.text();
    let text = text.trim();
    !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))
}

/// The leading instructions as one message, if there are any.
fn instructions(leading: &[Message]) -> Option<Message> {
    let first = leading.first()?;
    let mut contents: Vec<Content> =
        leading.iter().map(|message| message.content.clone()).collect();
    let mut changed = leading.len() > 1 || first.role != Role::System;
    for content in &mut contents {
        changed |= strip_attribution(content);
        if !content.text().trim().is_empty() {
            break;
        }
    }
    Some(match changed {
        false => first.clone(),
        true => Message::new(Role::System, join(contents.iter().map(trimmed))),
    })
}

/// Takes the attribution from the head of a content; whether there was one.
fn strip_attribution(content: &mut Content) -> bool {
    let mut found = false;
    let mut strip = |text: &mut String| {
        if let Some(rest) = behind_attribution(text) {
            *text = rest.to_owned();
            found = true;
        }
        text.trim().is_empty()
    };
    match content {
        Content::Null => {}
        Content::Text(text) => drop(strip(text)),
        // A part that was nothing else must not let the next one go unseen.
        Content::Parts(parts) => {
            let _all_empty = parts.iter_mut().all(|part| match part {
                Part::Text(text) => strip(text),
                Part::Unsupported { .. } => false,
            });
        }
    }
    found
}

/// What follows the attribution at the head of a text, if there is one. Where a client glued more text to its line,
/// the fields (`name=value;`) end it.
fn behind_attribution(text: &str) -> Option<&str> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    let is_field =
        |field: &str| field.split_once('=').is_some_and(|(name, _)| is_name(name.trim_start()));
    let mut rest = text.trim_start().strip_prefix(ATTRIBUTION)?;
    loop {
        let (line, below) = rest.split_at(rest.find('\n').unwrap_or(rest.len()));
        let mut glued = line;
        while let Some((field, more)) = glued.split_once(';')
            && is_field(field)
        {
            glued = more;
        }
        let fields_only = glued.len() == line.len() || is_field(glued) || glued.trim().is_empty();
        rest = if fields_only { below } else { &rest[line.len() - glued.len()..] };
        match rest.trim_start().strip_prefix(ATTRIBUTION) {
            Some(again) => rest = again,
            None => return Some(rest),
        }
    }
}

/// Adds a run of messages that are not the assistant's, the instructions among them folded into the others.
fn fold(run: &[Message], out: &mut Vec<Message>) {
    let first = run.iter().position(|message| !is_instruction(message)).unwrap_or(run.len());
    let (mut before, rest) = run.split_at(first);
    for turn in rest.chunk_by(|_, next| is_instruction(next)) {
        let (message, after) = (&turn[0], &turn[1..]);
        let (mut contents, more) = (reminders(before), reminders(after));
        before = &[];
        if contents.is_empty() && more.is_empty() {
            out.push(message.clone());
            continue;
        }
        contents.push(trimmed(&message.content));
        contents.extend(more);
        out.push(Message { content: join(contents), ..message.clone() });
    }
    let alone = reminders(before);
    if !alone.is_empty() {
        out.push(Message::new(Role::User, join(alone)));
    }
}

/// The marked text of each message that has any.
fn reminders(messages: &[Message]) -> Vec<Vec<Part>> {
    let contents = messages.iter().map(|message| trimmed(&message.content));
    let mark = |mut parts: Vec<Part>| {
        let [open, close] = REMINDER.map(|text| Part::Text(text.into()));
        parts.insert(0, open);
        parts.push(close);
        parts
    };
    contents.filter(|parts| !parts.is_empty()).map(mark).collect()
}

/// A content without the white space around it; no parts if nothing is left. Parts that are not text are kept, so that
/// rendering refuses them.
fn trimmed(content: &Content) -> Vec<Part> {
    match content {
        Content::Parts(parts) if parts.iter().any(|part| !matches!(part, Part::Text(_))) => {
            parts.clone()
        }
        content => match content.text().trim() {
            "" => Vec::new(),
            text => vec![Part::Text(text.to_owned())],
        },
    }
}

/// Contents joined by an empty line, those without parts left out.
fn join(contents: impl IntoIterator<Item = Vec<Part>>) -> Content {
    let mut parts: Vec<Part> = Vec::new();
    for more in contents {
        if !parts.is_empty() && !more.is_empty() {
            parts.push(Part::Text("\n\n".into()));
        }
        parts.extend(more);
    }
    let content = Content::Parts(parts);
    match &content {
        Content::Parts(parts) if parts.iter().all(|part| matches!(part, Part::Text(_))) => {
            Content::Text(content.text())
        }
        _ => content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Turns = &'static [(Role, &'static str)];
    use Role::{Assistant as A, Developer as D, System as S, Tool as T, User as U};

    fn messages(turns: &[(Role, &str)]) -> Vec<Message> {
        turns.iter().map(|(role, text)| Message::new(*role, *text)).collect()
    }

    /// Role initials and text of each message, reminders in brackets.
    fn sketch(messages: &[Message]) -> Vec<String> {
        let line = |message: &Message| {
            let text = message.content.text().replace(REMINDER[0], "[").replace(REMINDER[1], "]");
            format!("{}:{text}", &message.role.as_str()[..1])
        };
        messages.iter().map(line).collect()
    }

    #[test]
    fn repairs_orders_that_templates_refuse() {
        #[rustfmt::skip]
        let cases: [(Turns, &[&str]); 19] = [
            (&[(U, "u")], &["u:u"]),
            (&[(S, "s"), (U, "u")], &["s:s", "u:u"]),
            (&[(D, "d"), (U, "u")], &["s:d", "u:u"]),
            (&[(S, " s\n"), (D, "d"), (S, " "), (U, "u")], &["s:s\n\nd", "u:u"]),
            (&[(U, "u "), (S, " s"), (A, "a")], &["u:u\n\n[s]", "a:a"]),
            (&[(U, "u"), (D, "d"), (U, "v")], &["u:u\n\n[d]", "u:v"]),
            (&[(U, ""), (D, "d")], &["u:[d]"]),
            (&[(U, "u"), (A, "a"), (S, "s"), (S, "t"), (U, "v")], &["u:u", "a:a", "u:[s]\n\n[t]\n\nv"]),
            (&[(U, "u"), (A, "a"), (D, "d")], &["u:u", "a:a", "u:[d]"]),
            (&[(U, "u"), (A, "a"), (D, " "), (A, "b")], &["u:u", "a:a", "a:b"]),
            (&[(U, "u"), (A, "a"), (T, "t"), (S, "s")], &["u:u", "a:a", "t:t\n\n[s]"]),
            (&[(U, "u"), (A, "a"), (T, "t"), (S, "s"), (T, "r"), (S, "x")],
             &["u:u", "a:a", "t:t\n\n[s]", "t:r\n\n[x]"]),
            (&[(U, "u"), (A, "a"), (S, "s"), (T, "t"), (U, "v")], &["u:u", "a:a", "t:[s]\n\nt", "u:v"]),
            (&[(S, "s")], &["s:s", "u:"]),
            (&[(S, "s"), (A, "a"), (U, "u")], &["s:s", "u:", "a:a", "u:u"]),
            (&[(A, "a"), (U, "u")], &["a:a", "u:u"]),
            (&[(A, "a"), (A, "b"), (U, "u")], &["u:", "a:a", "a:b", "u:u"]),
            (&[(S, "s"), (U, " <tool_response>r</tool_response>\n")],
             &["s:s", "u:", "u: <tool_response>r</tool_response>\n"]),
            (&[(S, "s"), (U, "u"), (S, "")], &["s:s", "u:u"]),
        ];
        for (before, after) in cases {
            assert_eq!(sketch(&normalise(&messages(before))), after);
        }
        assert_eq!(sketch(&normalise(&[])), ["u:"]);
    }

    #[test]
    fn what_templates_take_is_left_alone() {
        let parts = vec![Part::Text("s ".into()), Part::Text(" t".into())];
        let list = [
            Message::new(S, Content::Parts(parts)),
            Message::new(U, " u "),
            Message { reasoning_content: Some(" r ".into()), ..Message::new(A, Content::Null) },
            Message::new(T, "\n"),
        ];
        assert_eq!(normalise(&list), list);
    }

    #[test]
    fn parts_that_are_not_text_stay_to_be_refused() {
        let image = || Part::Unsupported { kind: "image_url".into() };
        for role in [S, U, T] {
            let list = [
                Message::new(U, "u"),
                Message::new(role, Content::Parts(vec![Part::Text("a".into()), image()])),
                Message::new(S, "s"),
            ];
            let kept = normalise(&list);
            let is_kept = |message: &Message| match &message.content {
                Content::Parts(parts) => parts.contains(&image()),
                _ => false,
            };
            assert!(kept.iter().any(is_kept), "{kept:?}");
        }
    }

    #[test]
    fn changing_attribution_makes_no_difference() {
        let head =
            "x-anthropic-billing-header: cc_version=2.1.38.c39; cc_entrypoint=cli; cch=4873d;";
        for (text, rest) in [
            ("{}\n\nYou are", "\n\nYou are"),
            ("{}\r\nYou are", "\nYou are"),
            ("{}You are Claude; x=1;\nMore", "You are Claude; x=1;\nMore"),
            ("{} cc_workload=cron;\nYou", "\nYou"),
            ("{} last=1\nYou", "\nYou"),
            ("\n {}\n{}\nYou", "\nYou"),
            ("{}", ""),
            ("x-anthropic-billing-header: anything at all\nYou", "\nYou"),
            ("x-anthropic-billing-header: cc_version=2.1.38; cc_entrypoint=unknown;", ""),
        ] {
            assert_eq!(behind_attribution(&text.replace("{}", head)), Some(rest), "{text:?}");
        }
        for text in ["You are\nx-anthropic-billing-header: a=b;", "x-anthropic-billing: a=b;", ""] {
            assert_eq!(behind_attribution(text), None);
        }

        let plain = normalise(&messages(&[(S, "You are"), (S, "More"), (U, "u")]));
        assert_eq!(sketch(&plain), ["s:You are\n\nMore", "u:u"]);
        for hash in ["4873d", "00000"] {
            let head = head.replace("4873d", hash);
            let split = [(S, head.as_str()), (S, "You are"), (S, "More"), (U, "u")];
            assert_eq!(normalise(&messages(&split)), plain);
            let glued = format!("{head}\nYou are");
            assert_eq!(normalise(&messages(&[(S, &glued), (D, "More"), (U, "u")])), plain);
            let parts = [&head, "You are", "\n\nMore"].map(|text| Part::Text(text.into()));
            let one = [Message::new(S, Content::Parts(parts.into())), Message::new(U, "u")];
            assert_eq!(normalise(&one), plain);
            // What a user or a later instruction says is theirs.
            let user = [(U, head.as_str()), (A, "a"), (S, head.as_str())];
            let kept = sketch(&normalise(&messages(&user)));
            assert_eq!(kept[2], format!("u:[{head}]"));
            assert_eq!(kept[0], format!("u:{head}"));
        }
    }
}
