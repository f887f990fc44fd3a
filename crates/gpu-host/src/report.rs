//! What the executor says on standard error, made readable: addresses of a sanitizer's report become lines of kernels.

use std::process::{Command, Stdio};

/// Joins lines, up to where a report goes on about the sanitizer's own memory.
pub(crate) fn readable<'a>(lines: impl Iterator<Item = &'a String>) -> String {
    let told = lines.take_while(|line| !line.starts_with("Shadow bytes"));
    let told = told.map(|line| frame(line).unwrap_or_else(|| line.clone()));
    told.collect::<Vec<_>>().join("\n")
}

/// `    #0 0x7f... (LIBRARY+0x27b0) ...` with the source's lines, where they can be found.
fn frame(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix('#')?;
    let (_, place) = rest.split_once('(')?;
    let (library, offset) = place.split_once(')')?.0.rsplit_once('+')?;
    let output = Command::new("addr2line")
        .args(["-i", "-e", library, offset])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter(|line| !line.starts_with("??"));
    // Paths are those of the place that it was compiled in; the name says enough.
    let lines: Vec<&str> = lines.map(|line| line.rsplit('/').next().unwrap_or(line)).collect();
    let number = rest.split(' ').next().unwrap_or_default();
    (!lines.is_empty()).then(|| format!("    #{number} {}", lines.join(", called from ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_as_they_are_where_nothing_is_known() {
        let lines = ["==1==ERROR", "    #0 0x1 (/none+0x2)", "Shadow bytes around", "x"];
        let lines = lines.map(str::to_owned);
        assert_eq!(readable(lines.iter()), "==1==ERROR\n    #0 0x1 (/none+0x2)");
    }
}
