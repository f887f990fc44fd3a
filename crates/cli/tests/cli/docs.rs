//! Help, the manual and completions: all made from the flag table.

use crate::support::{calla, finish, ok, run};

const COMMANDS: [&str; 12] = [
    "chat",
    "generate",
    "doctor",
    "info",
    "plan",
    "eval",
    "synth",
    "tokenize",
    "detokenize",
    "render",
    "completions",
    "man",
];

#[test]
fn the_manual_names_every_command_and_its_flags() {
    let page = ok(&["man"], "");
    for command in COMMANDS {
        assert!(page.contains(&format!(".SH \"CALLA {}\"", command.to_uppercase())), "{command}");
    }
    for flag in
        ["temperature", "no\\-think", "goldens", "verify", "CALLA_MODEL", "skew", "m5\\-max"]
    {
        assert!(page.contains(flag), "{flag}");
    }
}

#[test]
fn completions_know_every_command_in_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = ok(&["completions", shell], "");
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        assert!(script.contains("no-think"), "{shell}");
    }
}

#[test]
fn long_help_has_examples() {
    for command in COMMANDS {
        let help = ok(&[command, "--help"], "");
        assert!(command == "man" || help.contains("Usage"), "{help}");
        assert!(help.contains("Examples:"), "{command}");
    }
    assert!(ok(&["--help"], "").contains("Exit status"));
    assert!(ok(&["--version"], "").starts_with("calla 0."));
}

#[test]
fn wrong_flags_are_usage_errors() {
    for args in [
        &["generate", "--no-such-flag"][..],
        &["no-such-command"],
        &["generate", "x", "--max-tokens", "0"],
        &["generate", "x", "--messages", "y"],
        &["generate", "x", "--seed", "-1"],
        &["generate", "x", "--top-k", "-1"],
        &["chat", "--ctx", "1"],
        &["chat", "--threads", "0"],
        &["chat", "--device", "abacus"],
        &["eval"],
        &["plan", "--context", "0"],
        &["plan", "--rows", "0"],
        &["plan", "--rows", "1000000000"],
        &["plan", "--sequences", "0"],
        &["plan", "--sequences", "100000"],
        &["plan", "--chip", "abacus"],
        &[],
    ] {
        let output = run(args, "");
        assert_eq!(output.status, Some(2), "{args:?}");
        assert!(!output.err.is_empty() && output.out.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn colour_is_for_terminals_unless_forced() {
    let escape = |output: &crate::support::Output| output.err.contains('\u{1b}');
    let args = ["tokenize", "/none"];
    assert!(!escape(&run(&args, "")));
    assert!(escape(&run(&["tokenize", "/none", "--color", "always"], "")));
    let forced = finish(calla(&args).env("CLICOLOR_FORCE", "1"));
    assert!(escape(&forced), "{forced:?}");
    // --color decides over NO_COLOR, and NO_COLOR over CLICOLOR_FORCE.
    let no = finish(calla(&args).env("NO_COLOR", "1").env("CLICOLOR_FORCE", "1"));
    assert!(!escape(&no), "{no:?}");
    let never =
        finish(calla(&["tokenize", "/none", "--color", "never"]).env("CLICOLOR_FORCE", "1"));
    assert!(!escape(&never), "{never:?}");
}
