//! What is done with a template's source before the engine parses it.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use crate::escape::{Mark, Survey};
use crate::{Error, Result};

/// Tokens in one tag. The engine bounds brackets and blocks, but follows a chain of operators, filters
/// or attributes by recursion: some 3,000 of them overflow a stack of 2 MB.
const TAG_TOKENS_MAX: usize = 1_000;
/// `elif` branches in a template: a chain of them is followed by recursion too.
const ELIFS_MAX: usize = 500;

/// Whitespace control as in `apply_chat_template`.
pub(crate) fn syntax() -> SyntaxConfig {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    // The default delimiters are valid; only a change of them could fail.
    syntax.unwrap_or_default()
}

/// Refuses chains that would overflow the stack. Other faults are left for the parser to report.
pub(crate) fn bound_chains(source: &str) -> Result<()> {
    let mut in_tag = 0;
    let mut elifs = 0;
    for (token, span) in tokenize(source, false, syntax()).map_while(|token| token.ok()) {
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => in_tag = 0,
            Token::Ident("elif") => elifs += 1,
            _ => {}
        }
        in_tag += 1;
        let (what, bound) = match () {
            () if in_tag > TAG_TOKENS_MAX => ("tokens in one tag", TAG_TOKENS_MAX),
            () if elifs > ELIFS_MAX => ("`elif` branches", ELIFS_MAX),
            () => continue,
        };
        return Err(Error::Template {
            line: Some(span.start_line.into()),
            reason: format!("more than {bound} {what}"),
        });
    }
    Ok(())
}

/// Surveys a source: what is written in it, and what the escapes of its literals (`'\\ufdd0'`) stand for.
/// The mark must be neither, or the template could take it out of the request's text.
pub(crate) fn survey_source(source: &str, survey: &mut Survey) {
    survey.text(source);
    for (token, _) in tokenize(source, false, syntax()).map_while(|token| token.ok()) {
        match token {
            Token::Str(text) => survey.text(text),
            Token::String(text) => survey.text(&text),
            _ => {}
        }
    }
}

/// The source with marks in the string literals that are compared with something: those before `in`
/// and `not in`, and those beside `==` and `!=`.
///
/// It goes by tokens, not by a syntax tree. Where it errs (a literal compared with text that the
/// template wrote itself), the comparison fails; nothing becomes a control token by it.
pub(crate) fn mark_literals(source: &str, mark: &Mark) -> String {
    let tokens: Vec<_> = tokenize(source, false, syntax()).map_while(|token| token.ok()).collect();
    let mut out = String::with_capacity(source.len() + 64);
    let mut copied = 0;
    for (at, (token, span)) in tokens.iter().enumerate() {
        if !matches!(token, Token::Str(_) | Token::String(_)) {
            continue;
        }
        let compares = |token: Option<&(Token<'_>, _)>| {
            matches!(token, Some((Token::Eq | Token::Ne | Token::Ident("in" | "not"), _)))
        };
        let follows = at > 0 && matches!(tokens[at - 1].0, Token::Eq | Token::Ne);
        if follows || compares(tokens.get(at + 1)) {
            // Between the quotes.
            let (start, end) = (span.start_offset as usize + 1, span.end_offset as usize - 1);
            out.push_str(&source[copied..start]);
            out.push_str(&mark.text(&source[start..end]));
            copied = end;
        }
    }
    out.push_str(&source[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_only_literals_that_are_compared() {
        let mark = Mark::for_test('~', "<", ">");
        for (source, expected) in [
            ("{%- if '</t>' in x %}", "{%- if '<~/t~>' in x %}"),
            ("{% if \"<t>\" not in x %}", "{% if \"<~t~>\" not in x %}"),
            ("{{ x == '<t>' }}", "{{ x == '<~t~>' }}"),
            ("{{ '<t>' != x }}", "{{ '<~t~>' != x }}"),
            ("{{ '<t>' + x }}", "{{ '<t>' + x }}"),
            ("{{ 'it\\'s <t>' in x }}", "{{ 'it\\'s <~t~>' in x }}"),
            ("{# '<t>' in x #}<t>", "{# '<t>' in x #}<t>"),
            (
                "{% raw %}{{ '{% endraw %}{{ '<t>' in x }}",
                "{% raw %}{{ '{% endraw %}{{ '<~t~>' in x }}",
            ),
            (
                "<t> in { {{ '}}<' in {'y': {}}['<t>'] }} é",
                "<t> in { {{ '}}<~' in {'y': {}}['<t>'] }} é",
            ),
            ("{{ '<", "{{ '<"),
            ("{{ '' in x }}", "{{ '' in x }}"),
            ("{% set é = 'é' %}{{ '<é>' in é }}{", "{% set é = 'é' %}{{ '<é>' in é }}{"),
        ] {
            let expected = if source.contains("set é") { source } else { expected };
            assert_eq!(mark_literals(source, &mark), expected, "{source}");
        }
    }

    #[test]
    fn chains_are_bounded_wherever_they_hide() {
        let chain = " + 1".repeat(600);
        for source in [
            format!("{{{{ 1{chain} }}}}"),
            format!("{{{{ {{'a': {{}}}}.b{chain} }}}}"),
            format!("{{% raw %}}{{{{ '{{% endraw %}}{{% if 1{chain} %}}"),
            "{% if a %}".to_owned() + &"{% elif b %}".repeat(501),
        ] {
            assert!(matches!(bound_chains(&source), Err(Error::Template { line: Some(1), .. })));
        }
        assert!(bound_chains(&"{{ 1 + 1 }}".repeat(10_000)).is_ok());
        assert!(bound_chains("{{ '").is_ok());
    }
}
