//! `chat`: on pipes, and on a pseudo-terminal that Python provides.

use crate::support::{arg, calla, demo, error, finish, run};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn lines_of_a_pipe_are_messages() {
    let output = run(
        &["chat", "--no-think"],
        "12 + 30 = ?\n\nThe password is engine.\nWhich word did I tell you?",
    );
    assert_eq!(output.status, Some(0), "{}", output.err);
    let lines: Vec<&str> = output.out.lines().collect();
    assert_eq!(lines.len(), 3, "{output:?}");
    assert_eq!(lines[0], "12 + 30 = 42");
    assert!(lines[2].contains("engine"), "the conversation is remembered: {lines:?}");
    assert!(!output.out.contains('\u{1b}') && !output.err.contains('\u{1b}'), "{output:?}");
    let figures = output.err.lines().filter(|line| line.starts_with("[prompt ")).count();
    assert_eq!(figures, 3, "{}", output.err);
}

#[test]
fn a_chat_is_saved_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat.json");
    let save = format!("/save {}\n", arg(&file));
    let output = run(
        &["chat", "--no-think", "--system", "Be brief."],
        &format!("The password is engine.\n{save}{save}/save\n"),
    );
    assert_eq!(output.status, Some(0), "{}", output.err);
    assert!(output.err.contains("saved to"), "{}", output.err);
    assert!(output.err.contains("/save! overwrites"), "{}", output.err);
    assert!(output.err.contains("needs the name of a file"), "{}", output.err);
    let saved: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let roles: Vec<&Value> =
        saved["messages"].as_array().unwrap().iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    let args = ["chat", "--no-think", "--messages", arg(&file)];
    let more = run(&args, "Which word did I tell you?\n");
    assert!(more.out.contains("engine"), "{more:?}");
    // `generate` reads the same file.
    let output = run(&["render", arg(&file)], "");
    assert!(output.out.contains("Be brief."), "{output:?}");
}

#[test]
fn commands_change_the_conversation() {
    let output = run(
        &["chat", "--no-think"],
        "/system Be brief.\n/system\nThe password is engine.\n/reset\n/stats\n/nonsense\n/tool 3\n\
         /think on\n12 + 30 = ?\n/system -\n/help\n/exit\n12 + 30 = ?\n",
    );
    assert_eq!(output.status, Some(0), "{}", output.err);
    for words in [
        "system message: Be brief.",
        "the conversation is forgotten",
        "0 messages; context of 16384 tokens",
        "prefixes on disk",
        "last prompt: 0 tokens reused",
        "there is no command /nonsense",
        "waits for no result",
        "thinking is on",
        "system message removed",
        "/save FILE",
    ] {
        assert!(output.err.contains(words), "{words}: {}", output.err);
    }
    assert_eq!(output.out.matches("42").count(), 1, "/exit leaves: {}", output.out);
}

#[test]
fn a_message_beyond_the_context_is_taken_back_and_the_chat_goes_on() {
    let long = "word ".repeat(300);
    let output = run(&["chat", "--no-think", "--ctx", "128"], &format!("{long}\n12 + 30 = ?\n"));
    assert_eq!(output.status, Some(0), "{}", output.err);
    assert!(output.err.contains("but the context holds 128"), "{}", output.err);
    assert!(output.err.contains("/reset"), "{}", output.err);
    assert_eq!(output.out, "12 + 30 = 42\n");
}

#[test]
fn the_context_is_what_was_asked_for() {
    let output = run(&["chat", "--no-think", "--ctx", "30001"], "/stats\n");
    assert!(output.err.contains("context of 30001 tokens"), "{}", output.err);
    let output = run(&["chat", "--no-think", "--ctx", "2"], "hi\n");
    assert!(output.err.contains("but the context holds 2"), "{}", output.err);
    let small = ["generate", "--raw", "--json", "--ctx", "9", "1 2 3"];
    let reply = crate::support::ok_json(&small, "");
    let used = &reply["usage"];
    let total =
        used["prompt_tokens"].as_u64().unwrap() + used["completion_tokens"].as_u64().unwrap();
    assert!(total <= 9, "{reply}");
    assert_eq!(run(&["chat", "--ctx", "1"], "").status, Some(2));
}

#[test]
fn a_saved_call_is_answered_with_tool() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("saved.json");
    let call = json!({"id": "c", "type": "function",
        "function": {"name": "clock", "arguments": "{}"}});
    let messages = json!([{"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "", "tool_calls": [call]}]);
    fs::write(&file, json!({"messages": messages, "tools": [{"name": "clock"}]}).to_string())
        .unwrap();
    let args = ["chat", "--no-think", "--max-tokens", "8", "--messages", arg(&file)];
    let output = run(&args, "/tool 17:00\n/tool again\n");
    assert_eq!(output.status, Some(0), "{}", output.err);
    assert!(output.err.contains("/tool RESULT answers the call"), "{}", output.err);
    assert!(output.err.contains("[prompt "), "{}", output.err);
    assert!(output.err.contains("waits for no result"), "{}", output.err);
}

#[test]
fn a_call_is_answered_with_tool() {
    let items = fs::read_to_string(demo().join("eval.jsonl")).unwrap();
    let item = items
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .find(|item| {
            item["answer"].is_object()
                && item["think"] == false
                && item["messages"].as_array().unwrap().len() == 1
        })
        .expect("a question with a call");
    let dir = tempfile::tempdir().unwrap();
    let tools = dir.path().join("tools.json");
    fs::write(&tools, item["tools"].to_string()).unwrap();
    let question = item["messages"][0]["content"].as_str().unwrap();
    let save = dir.path().join("saved.json");
    let output = run(
        &["chat", "--no-think", "--tools", arg(&tools)],
        &format!("{question}\n/tool 17\n/save {}\n", arg(&save)),
    );
    assert_eq!(output.status, Some(0), "{}", output.err);
    let name = item["answer"]["name"].as_str().unwrap();
    assert!(output.out.starts_with(name), "{}", output.out);
    assert!(output.err.contains("/tool RESULT"), "{}", output.err);
    let saved: Value = serde_json::from_str(&fs::read_to_string(&save).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 4, "{saved}");
    assert_eq!(messages[1]["tool_calls"][0]["function"]["name"], name);
    assert_eq!(messages[2]["tool_call_id"], messages[1]["tool_calls"][0]["id"]);
    assert!(!messages[3]["content"].as_str().unwrap().is_empty());
}

#[test]
fn files_that_are_wrong_end_the_program_before_it_loads() {
    assert!(error(&["chat", "--tools", "/none"], "").contains("cannot read /none"));
    assert!(error(&["chat", "--messages", "/none"], "").contains("cannot read /none"));
    assert!(error(&["chat", "--temperature", "101"], "").contains("--temperature"));
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let output = finish(calla(&["chat", "--no-think"]).write_stdin(&b"caf\xe9\n"[..]));
    assert_eq!(output.status, Some(1), "{}", output.err);
    assert!(output.err.contains("not UTF-8 text: byte 3 of a line"), "{}", output.err);
}

/// Drives the program on a pseudo-terminal: what it printed; `None` if Python is missing.
fn on_terminal(args: &[&str], home: &Path, steps: &Value) -> Option<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/terminal.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(env!("CARGO_BIN_EXE_calla")).args(args);
    for name in ["CALLA_DEVICE", "CALLA_MODEL", "CALLA_LOG", "NO_COLOR", "HF_HOME", "HF_HUB_CACHE"]
    {
        command.env_remove(name);
    }
    command.env("HOME", home).env("XDG_STATE_HOME", home.join("state")).env("TERM", "xterm");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        println!("skipped: python3, which provides the pseudo-terminal, is missing");
        return None;
    };
    child.stdin.take().unwrap().write_all(steps.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    Some(text)
}

const DIMMED: &str = "\u{1b}[2m";

#[test]
fn a_person_sees_thinking_dimmed_and_the_answer_plain() {
    let home = tempfile::tempdir().unwrap();
    let steps = json!([
        ["expect", "/help lists commands"],
        ["expect", "> "],
        ["send", "12 + 30 = ?\r"],
        ["expect", "42"],
        ["expect", "[prompt "],
        ["expect", "> "],
        ["send", "/think off\r"],
        ["expect", "thinking is off"],
        ["send", "12 + 31 = ?\r"],
        ["expect", "12 + 31 = 43"],
        ["expect", "[prompt "],
        ["expect", "> "],
        // Ctrl-D.
        ["send", "\u{4}"],
        ["exit", 0],
    ]);
    let Some(text) = on_terminal(&["chat"], home.path(), &steps) else { return };
    assert!(text.contains(DIMMED), "{text}");
    assert!(!text.contains(&format!("{DIMMED}12 + 31 = 43")), "{text}");
    let history = fs::read_to_string(home.path().join("state/calla/history")).unwrap();
    assert!(history.contains("12 + 30 = ?"), "{history}");
    // The next chat knows what was typed: the up arrow brings it.
    let again = json!([
        ["expect", "> "],
        ["send", "\u{1b}[A"],
        ["expect", "12 + 31 = ?"],
        ["send", "\r"],
        ["expect", "[prompt "],
        ["expect", "> "],
        ["send", "/exit\r"],
        ["exit", 0],
    ]);
    on_terminal(&["chat", "--no-think"], home.path(), &again);
}

#[test]
fn no_color_means_none() {
    let home = tempfile::tempdir().unwrap();
    let steps = json!([
        ["expect", "> "],
        ["send", "12 + 30 = ?\r"],
        ["expect", "[prompt "],
        ["expect", "> "],
        ["send", "\u{4}"],
        ["exit", 0],
    ]);
    let args = ["chat", "--color", "never"];
    let Some(text) = on_terminal(&args, home.path(), &steps) else { return };
    assert!(!text.contains(DIMMED), "{text}");
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    let home = tempfile::tempdir().unwrap();
    let steps = json!([
        ["expect", "> "],
        // Noise without end, until the context is full.
        ["send", "Tell me a story.\r"],
        ["expect", "\n"],
        ["send", "\u{3}"],
        ["expect", "stopped"],
        ["expect", "> "],
        ["send", "/stats\r"],
        ["expect", "messages; context"],
        ["expect", "> "],
        // At a prompt with text, Ctrl-C clears it and does not count.
        ["send", "abc\u{3}"],
        ["expect", "> "],
        ["send", "\u{3}"],
        ["expect", "Ctrl-C again"],
        ["expect", "> "],
        ["send", "/stats\r"],
        ["expect", "messages; context"],
        ["expect", "> "],
        ["send", "\u{3}"],
        ["expect", "Ctrl-C again"],
        ["expect", "> "],
        ["send", "\u{3}"],
        ["exit", 0],
    ]);
    let args = ["chat", "--no-think", "--temperature", "50", "--seed", "1"];
    on_terminal(&args, home.path(), &steps);
}

#[test]
fn a_message_can_have_several_lines() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("saved.json");
    let steps = json!([
        ["expect", "> "],
        ["send", "12 + \\\r"],
        ["send", "30 = ?\r"],
        ["expect", "[prompt "],
        ["expect", "> "],
        ["send", "\"\"\"\r"],
        ["send", "one\r"],
        ["send", "two\r"],
        ["send", "\"\"\"\r"],
        ["expect", "[prompt "],
        ["expect", "> "],
        // What a terminal sends when text is pasted.
        ["send", "\u{1b}[200~three\nfour\u{1b}[201~"],
        ["expect", "four"],
        ["send", "\r"],
        ["expect", "[prompt "],
        ["expect", "> "],
        ["send", format!("/save {}\r", arg(&file))],
        ["expect", "saved"],
        ["send", "/exit\r"],
        ["exit", 0],
    ]);
    let args = ["chat", "--no-think", "--max-tokens", "20"];
    if on_terminal(&args, home.path(), &steps).is_none() {
        return;
    }
    let saved: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let said: Vec<&str> = saved["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "user")
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["12 + \n30 = ?", "one\ntwo", "three\nfour"]);
}

#[cfg(unix)]
#[test]
fn a_signal_ends_a_chat_that_waits_on_a_pipe() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_calla"))
        .args(["chat", "--no-think", "--model", arg(&demo())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"12 + 30 = ?\n").unwrap();
    // The line of figures is the last thing before the next line is waited for.
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("[prompt ") {
        line.clear();
        assert_ne!(err.read_line(&mut line).unwrap(), 0);
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
