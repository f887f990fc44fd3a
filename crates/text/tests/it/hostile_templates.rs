//! Templates and requests made to break the renderer.

use calla_text::{ChatTemplate, Error, Message, RenderOptions, Role};
use serde_json::{Value, json};

use crate::fixtures::{byte_tokenizer, messages};

fn render(source: &str) -> Result<String, Error> {
    let template = ChatTemplate::new(source.into(), None)?;
    let conversation = [Message::new(Role::User, "hi")];
    let rendered = template.render(&byte_tokenizer(), &conversation, &RenderOptions::default())?;
    Ok(rendered.text)
}

#[test]
fn templates_that_never_end_or_eat_memory_are_stopped() {
    for source in [
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% for i in range(20000) %}{{ messages | tojson }}{{ range(9999) | list | tojson }}{% endfor %}",
        "{{ ('x' * 100000).replace('x', 'x' * 100000) }}",
        "{{ '{:>20000000000}'.format(1) }}",
        "{{ '{:.4000000000f}'.format(1.5) | length }}",
        "{{ ('{0}' * 10000).format('x' * 100000) | length }}",
        "{% for i in range(100000) %}{{ '{:>1000}'.format(1) | length }}{% endfor %}",
        "{{ '%1000000000d' | format(1) }}",
    ] {
        let error = render(source).unwrap_err();
        assert!(!error.is_request_fault(), "{source}: {error}");
        assert!(error.to_string().starts_with("chat template"), "{source}: {error}");
    }
}

#[test]
fn a_panic_of_the_engine_is_an_error() {
    let error = render("{% for i in [1] %}{{ loop.cycle() }}{% endfor %}").unwrap_err().to_string();
    assert!(error.starts_with("chat template: the engine gave up: "), "{error}");
    assert!(!calla_text::is_guarded());
}

#[test]
fn work_that_is_not_charged_is_stopped_by_time() {
    let doubled = "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}\
                   {% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}";
    let error = render(doubled).unwrap_err().to_string();
    assert_eq!(error, "chat template: stopped, it exceeds the bound of 5 seconds");
}

#[test]
fn deep_nesting_is_an_error_not_a_crash() {
    let ifs = format!("{}x{}", "{% if true %}".repeat(5500), "{% endif %}".repeat(5500));
    let parentheses = format!("{{{{ {}1{} }}}}", "(".repeat(6000), ")".repeat(6000));
    let lists = format!("{{{{ {}{} }}}}", "[".repeat(6000), "]".repeat(6000));
    let nots = format!("{{{{ {}true }}}}", "not ".repeat(6000));
    let minus = format!("{{{{ {}1 }}}}", "-".repeat(6000));
    let filters = format!("{{{{ 'x'{} }}}}", "|trim".repeat(6000));
    let sums = format!("{{{{ 1{} }}}}", " + 1".repeat(6000));
    let attributes = format!("{{{{ x{} }}}}", ".a".repeat(6000));
    let elifs = format!("{{% if false %}}{}{{% endif %}}", "{% elif false %}".repeat(5500));
    let value = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let printed = value.to_owned() + "{{ ns.x }}";
    let written = value.to_owned() + "{{ ns.x | tojson }}";
    let compared = value.to_owned() + "{{ ns.x == [ns.x] }}";
    let value = value.to_owned();
    for source in [
        ifs,
        parentheses,
        lists,
        nots,
        minus,
        filters,
        sums,
        attributes,
        elifs,
        value,
        printed,
        written,
        compared,
    ] {
        // Chains may be legal; what counts is that none takes the program down.
        if let Err(error) = render(&source) {
            assert!(error.to_string().starts_with("chat template"), "{error}");
        }
    }
}

#[test]
fn there_is_nothing_to_escape_to() {
    for source in [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends '/etc/passwd' %}",
        "{{ lipsum.__globals__['os'] }}",
    ] {
        let error = render(source).unwrap_err();
        assert!(matches!(error, Error::Template { .. }), "{source}: {error}");
    }
}

#[test]
fn errors_say_where_and_whose_fault() {
    let error = render("a\nb{% if %}").unwrap_err();
    assert!(matches!(error, Error::Template { line: Some(2), .. }), "{error}");
    let error = render("{{ raise_exception('no <' ~ messages[0].content ~ '>') }}").unwrap_err();
    assert!(matches!(&error, Error::TemplateRaised { message } if message == "no <hi>"), "{error}");
    assert!(error.is_request_fault());
    let error = render("{{ raise_exception('x' * 100000) }}").unwrap_err().to_string();
    assert!(error.len() < 1_100 && error.ends_with("x..."), "{}", error.len());
    let error =
        render("{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}").unwrap_err();
    assert!(matches!(&error, Error::TemplateRaised { message } if message == "deep"), "{error}");
}

#[test]
fn the_dialect_is_that_of_apply_chat_template() {
    for (source, expected) in [
        ("{% if true %}\n  a\n{% endif %}\nb\n", "  a\nb"),
        ("  {% if true %}a{% endif %}", "a"),
        ("{{ none }} {{ true }} {{ 1.0 }} {{ missing }}", "None True 1.0 "),
        ("{{ true | string }} {{ 'a' | string }} {{ none | string }}", "True a None"),
        (
            "{{ {'b': [1, 2.5, true, none, 'é<&']} | tojson }}",
            "{\"b\": [1, 2.5, true, null, \"é<&\"]}",
        ),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ '{}={:>4}{{}}'.format('a', 7) }}", "a=   7{}"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ messages[-1].role }}{{ messages[::-1] | length }}{{ ' x '.strip() }}", "user1x"),
    ] {
        assert_eq!(render(source).unwrap(), expected, "{source}");
    }
    assert!(render("{{ [1] | tojson(indent=1000000000) }}").is_err());
}

#[test]
fn requests_are_checked() {
    let tokenizer = byte_tokenizer();
    let template = ChatTemplate::new("{{ messages[0].content }}{{ x }}".into(), None).unwrap();
    let user = [Message::new(Role::User, "hi")];
    for name in
        ["messages", "tools", "tokenize", "chat_template", "enable_thinking", "raise_exception"]
    {
        let variables = [(name.to_owned(), Value::Null)].into_iter().collect();
        let options = RenderOptions { variables, ..RenderOptions::default() };
        let error = template.render(&tokenizer, &user, &options).unwrap_err();
        assert!(matches!(&error, Error::ReservedVariable { name: n } if n == name), "{error}");
    }
    let variables = [("x".to_owned(), json!("!"))].into_iter().collect();
    let options = RenderOptions { variables, ..RenderOptions::default() };
    assert_eq!(template.render(&tokenizer, &user, &options).unwrap().text, "hi!");

    for (part, kind) in [
        (json!({"type": "image_url", "image_url": {"url": "x"}}), "image_url"),
        (json!({"type": "image"}), "image"),
        (json!({"video": "x"}), "video"),
        (json!({"type": "input_audio", "text": "not really"}), "input_audio"),
    ] {
        let conversation = messages(json!([
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "see"}, part]},
        ]));
        let error =
            template.render(&tokenizer, &conversation, &RenderOptions::default()).unwrap_err();
        assert!(
            matches!(&error, Error::UnsupportedPart { index: 1, kind: k } if k == kind),
            "{error}"
        );
    }

    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let options = RenderOptions { tools: vec![deep], ..RenderOptions::default() };
    let error = template.render(&tokenizer, &user, &options).unwrap_err();
    assert!(matches!(error, Error::BadRequest { .. }), "{error}");
}

#[test]
fn a_long_conversation_is_within_budget() {
    let source = "{% for m in messages %}{% set c = m.content | trim %}\
        {{ '<|im_start|>' + m.role + '\n' + c + '<|im_end|>\n' }}{% endfor %}";
    let template = ChatTemplate::new(source.into(), None).unwrap();
    let mut conversation = vec![Message::new(Role::User, "word ".repeat(200_000))];
    conversation.extend((0..5_000).map(|i| Message::new(Role::User, format!("turn {i}"))));
    let options = RenderOptions::default();
    let rendered = template.render(&byte_tokenizer(), &conversation, &options).unwrap();
    assert!(rendered.text.len() > 1_000_000);
}
