//! Sources with their headers inlined: Metal compiles a text, and finds no files beside it.

use calla_gpu::sources::Source;

/// The text of a kernel with each quoted `#include` replaced by that header, once. `#line` lets the compiler's messages
/// name the header or kernel and its line.
///
/// # Errors
/// If a header is not there: its name, and the file that includes it.
pub fn inline(kernel: Source, headers: &[Source]) -> Result<String, String> {
    let mut text = String::new();
    let mut done = vec![];
    append(kernel, headers, &mut done, &mut text)?;
    Ok(text)
}

fn append(
    file: Source,
    headers: &[Source],
    done: &mut Vec<&'static str>,
    text: &mut String,
) -> Result<(), String> {
    *text += &format!("#line 1 \"{}\"\n", file.name);
    for (number, line) in (1..).zip(file.text.lines()) {
        if line.trim() == "#pragma once" {
            // It would concern the whole text. Each header comes once anyway; the line keeps the count.
            *text += "\n";
            continue;
        }
        let Some(name) = quoted_include(line) else {
            *text += line;
            *text += "\n";
            continue;
        };
        let header = headers.iter().find(|header| header.name == name);
        let header =
            header.ok_or_else(|| format!("{} includes {name:?}: no such header", file.name))?;
        if !done.contains(&header.name) {
            done.push(header.name);
            append(*header, headers, done, text)?;
        }
        *text += &format!("#line {} \"{}\"\n", number + 1, file.name);
    }
    Ok(())
}

/// The name in `#include "name"`.
fn quoted_include(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split_once('"').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use calla_gpu::sources::{HEADERS, KERNELS, METAL4_HEADERS, METAL4_KERNELS};

    const A: Source = Source { name: "a.h", text: "#pragma once\n#include \"b.h\"\nint a;\n" };
    const B: Source = Source { name: "b.h", text: "#pragma once\nint b;\n" };

    #[test]
    fn headers_come_once_where_they_are_first_included() {
        let text = "#include <metal_stdlib>\n#include \"a.h\"\n#include \"b.h\"\nint k;";
        let inlined = inline(Source { name: "k.metal", text }, &[A, B]).unwrap();
        let due = "#line 1 \"k.metal\"\n#include <metal_stdlib>\n\
            #line 1 \"a.h\"\n\n#line 1 \"b.h\"\n\nint b;\n#line 3 \"a.h\"\nint a;\n\
            #line 3 \"k.metal\"\n#line 4 \"k.metal\"\nint k;\n";
        assert_eq!(inlined, due);
        let error = inline(Source { name: "k.metal", text: "#include \"c.h\"" }, &[A, B]);
        assert_eq!(error.unwrap_err(), "k.metal includes \"c.h\": no such header");
    }

    #[test]
    fn no_kernel_includes_a_file_any_more() {
        let metal4: Vec<Source> = [HEADERS, METAL4_HEADERS].concat();
        let plain = KERNELS.iter().map(|kernel| inline(*kernel, HEADERS));
        let all = plain.chain(METAL4_KERNELS.iter().map(|kernel| inline(*kernel, &metal4)));
        for text in all {
            let text = text.unwrap();
            assert!(!text.contains("#include \"") && !text.contains("#pragma once"));
            assert!(text.contains("kernel void"));
        }
    }

    /// The host's reader takes an inlined text for what it takes the files for.
    #[test]
    fn inlined_kernels_have_the_same_entry_points() {
        let headers: Vec<(&str, &str)> = HEADERS.iter().map(|h| (h.name, h.text)).collect();
        for kernel in KERNELS {
            let read = |text: &str, headers: &[(&str, &str)]| {
                let target = calla_msl::Target::Host;
                calla_msl::translate(target, kernel.name, text, headers).unwrap().entries
            };
            let inlined = inline(*kernel, HEADERS).unwrap();
            let without_lines: String = inlined
                .lines()
                .filter(|line| !line.starts_with("#line"))
                .flat_map(|line| [line, "\n"])
                .collect();
            assert_eq!(read(&without_lines, &[]), read(kernel.text, &headers), "{}", kernel.name);
        }
    }
}
