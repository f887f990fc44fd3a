//! From flags to the grammar of a reply.

use crate::engine_args::StructureArgs;
use crate::input;
use anyhow::Context;
use calla_engine::Grammar;
use calla_grammar::{Compiler, ToolChoice, tool_calls};
use calla_runtime::Compile;
use calla_text::Tokenizer;
use serde_json::Value;

/// Compiles grammars over a tokenizer.
pub(crate) fn compiler(
    tokenizer: &Tokenizer,
    vocab_used: usize,
    stop_ids: &[u32],
) -> anyhow::Result<Compile> {
    let compiler = Compiler::new(tokenizer, vocab_used, stop_ids)?;
    Ok(Box::new(move |grammar| compiler.compile(grammar).map_err(|error| error.to_string())))
}

/// The grammar that the flags ask for.
pub(crate) fn from_flags(args: &StructureArgs, tools: &[Value]) -> anyhow::Result<Option<Grammar>> {
    if let Some(file) = &args.json_schema {
        let text = input::text(Some(file)).context("--json-schema")?;
        return Ok(Some(Grammar::JsonSchema(text)));
    }
    if args.json_object {
        return Ok(Some(Grammar::JsonObject));
    }
    if let Some(regex) = &args.regex {
        return Ok(Some(Grammar::Regex(regex.clone())));
    }
    if let Some(file) = &args.grammar {
        return Ok(Some(Grammar::Lark(input::text(Some(file)).context("--grammar")?)));
    }
    let choice = match args.tool_choice.as_deref() {
        None | Some("auto") => return Ok(None),
        Some("required") => ToolChoice::Required,
        Some(name) => ToolChoice::Named(name.to_owned()),
    };
    Ok(Some(tool_calls(tools, &choice, true).context("--tool-choice")?))
}
