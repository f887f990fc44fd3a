//! Shell completions and the manual page, both made from the flag table.

use crate::args::Cli;
use crate::output;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::io;

/// Prints completions for a shell.
pub(crate) fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "calla", &mut bytes);
    output::raw(&String::from_utf8(bytes)?)
}

/// Prints the manual: one page, with a section for each command.
pub(crate) fn man() -> anyhow::Result<()> {
    output::raw(&manual()?)
}

fn manual() -> anyhow::Result<String> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    let top = clap_mangen::Man::new(command.clone());
    top.render_title(&mut page)?;
    top.render_name_section(&mut page)?;
    top.render_synopsis_section(&mut page)?;
    top.render_description_section(&mut page)?;
    top.render_options_section(&mut page)?;
    for subcommand in
        command.get_subcommands().filter(|c| c.get_name() != "help" && !c.is_hide_set())
    {
        section(subcommand, &mut page)?;
    }
    top.render_extra_section(&mut page)?;
    Ok(without_repeated_preamble(&String::from_utf8(page)?))
}

/// Each section brings the definition of the apostrophe along; the first one suffices.
fn without_repeated_preamble(page: &str) -> String {
    let mut lines = page.lines();
    let mut out: Vec<&str> = lines.by_ref().take(2).collect();
    out.extend(lines.filter(|line| !line.starts_with(".ie ") && !line.starts_with(".el ")));
    out.join("\n") + "\n"
}

/// A command's section. Its own flags only: the global ones stand at the top.
fn section(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    use io::Write;
    writeln!(page, ".SH \"CALLA {}\"", command.get_name().to_uppercase())?;
    let own = command.clone().mut_args(|arg| {
        let is_global = arg.is_global_set() || arg.get_id() == "help";
        arg.hide(is_global)
    });
    let man = clap_mangen::Man::new(own);
    let mut body = Vec::new();
    man.render_synopsis_section(&mut body)?;
    man.render_description_section(&mut body)?;
    man.render_options_section(&mut body)?;
    man.render_extra_section(&mut body)?;
    // Sections of a page become subsections here.
    for line in String::from_utf8_lossy(&body).lines() {
        match line.strip_prefix(".SH ") {
            Some(title) => writeln!(page, ".SS {title}")?,
            None => writeln!(page, "{line}")?,
        }
    }
    Ok(())
}
