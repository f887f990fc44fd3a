//! `calla tokenize`, `detokenize` and `render`: text and ids, without weights.

use crate::args::{DetokenizeArgs, RenderArgs, TokenizeArgs};
use crate::load::TextSide;
use crate::{input, output};
use anyhow::{Context, bail};
use calla_text::{ChatTemplate, normalise};
use serde_json::{Value, json};

/// Text to ids.
pub(crate) fn tokenize(args: &TokenizeArgs) -> anyhow::Result<()> {
    let text = input::text(args.file.as_deref())?;
    let TextSide { tokenizer, .. } = TextSide::load(args.model.model.as_deref())?;
    let ids =
        if args.special { tokenizer.encode_raw(&text)? } else { tokenizer.encode_text(&text)? };
    if args.json {
        return output::json(&json!({ "ids": ids }));
    }
    let words: Vec<String> = ids.iter().map(u32::to_string).collect();
    output::raw(&format!("{}\n", words.join(" ")))
}

/// Ids to text.
pub(crate) fn detokenize(args: &DetokenizeArgs) -> anyhow::Result<()> {
    let ids = parse_ids(&input::text(args.file.as_deref())?)?;
    let TextSide { tokenizer, .. } = TextSide::load(args.model.model.as_deref())?;
    let size = tokenizer.vocab_size();
    if let Some(index) = ids.iter().position(|&id| id as usize >= size) {
        bail!("id {} (number {index}) is not below {size}, the tokenizer's size", ids[index]);
    }
    let text = tokenizer.decode(&ids, args.skip_special);
    if args.json { output::json(&json!({ "text": text })) } else { output::raw(&text) }
}

/// Messages to the prompt's text, or text and ids.
pub(crate) fn render(args: &RenderArgs) -> anyhow::Result<()> {
    let mut conversation = input::conversation(args.file.as_deref())?;
    if let Some(file) = &args.tools {
        conversation.tools = input::tools(file)?;
    }
    let TextSide { dir, tokenizer } = TextSide::load(args.model.model.as_deref())?;
    let mut options = conversation.render_options(&args.think);
    options.add_generation_prompt &= !args.no_generation_prompt;
    let messages = normalise(&conversation.messages);
    let rendered = ChatTemplate::load(&dir)?.render(&tokenizer, &messages, &options)?;
    if args.json {
        output::json(&json!({ "text": rendered.text, "ids": rendered.ids }))
    } else {
        output::raw(&rendered.text)
    }
}

/// `{"ids": [...]}`, a JSON list, or numbers between white space.
fn parse_ids(text: &str) -> anyhow::Result<Vec<u32>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return text
            .split_whitespace()
            .map(|word| word.parse().with_context(|| format!("{word:?} is not a token id")))
            .collect();
    }
    let value: Value = serde_json::from_str(text).context("the ids are not JSON")?;
    let list = match value {
        Value::Object(mut map) => map.remove("ids").context("the object has no \"ids\"")?,
        list => list,
    };
    let Value::Array(list) = list else { bail!("\"ids\" is not a list") };
    list.iter()
        .map(|id| {
            let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
            number.with_context(|| format!("{id} is not a token id"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_in_three_forms() {
        for text in ["1 2\n30", "[1, 2, 30]", " {\"ids\": [1,2,30]}\n"] {
            assert_eq!(parse_ids(text).unwrap(), [1, 2, 30], "{text}");
        }
        assert_eq!(parse_ids("").unwrap(), Vec::<u32>::new());
        for (text, words) in [
            ("1 -2", "\"-2\" is not a token id"),
            ("[1.5]", "1.5 is not"),
            ("[4294967296]", "is not a token id"),
            ("{}", "no \"ids\""),
            ("{\"ids\": 3}", "not a list"),
            ("[1", "not JSON"),
        ] {
            let message = format!("{:#}", parse_ids(text).unwrap_err());
            assert!(message.contains(words), "{message}");
        }
    }
}
