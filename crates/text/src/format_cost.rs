//! What `str.format` may write, found before it writes: the engine neither bounds nor charges it.
//!
//! `'{:>20000000000}'.format(1)` asks for 20 GB in 30 bytes of template.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind};

/// Largest width or precision of a field.
const WIDTH_MAX: usize = 1_000;

/// Fuel for formatting: as for other text, one unit for 16 bytes of the most that can come out.
///
/// # Errors
/// A field's width or precision above [`WIDTH_MAX`].
pub(crate) fn format_cost(format: &str, args: &[Value]) -> Result<u64, Error> {
    let mut fields: u64 = 0;
    let mut rest = format;
    while let Some((_, after)) = rest.split_once('{') {
        rest = after;
        // `{{` is a brace.
        if let Some(after) = rest.strip_prefix('{') {
            rest = after;
            continue;
        }
        fields += 1;
        let (spec, after) = cut_field(rest);
        rest = after;
        for number in spec.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty()) {
            // What does not fit is too large as well.
            if number.parse::<usize>().map_or(true, |number| number > WIDTH_MAX) {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!(
                        "str.format: the field {{:{spec}}} asks for a width or precision above \
                         {WIDTH_MAX}"
                    ),
                ));
            }
        }
    }
    let bytes = args.iter().map(|arg| match arg.as_str() {
        Some(text) => text.len() as u64,
        None => arg.to_string().len() as u64,
    });
    let longest = bytes.fold(WIDTH_MAX as u64, u64::saturating_add);
    Ok(fields.saturating_mul(longest) / 16)
}

/// The specification behind a field's `:` without its fill, and what follows it. Keys in brackets
/// and the fill may hold any character, so that the first `}` need not end the field.
fn cut_field(mut rest: &str) -> (&str, &str) {
    loop {
        let Some(at) = rest.find([':', '}', '[']) else { return ("", "") };
        let (found, after) = (rest.as_bytes()[at], &rest[at + 1..]);
        rest = after;
        match found {
            b'}' => return ("", rest),
            b'[' => rest = rest.split_once(']').map_or("", |(_, after)| after),
            _ => break,
        }
    }
    let mut chars = rest.chars();
    chars.next();
    if let Some('<' | '>' | '^') = chars.next() {
        rest = chars.as_str();
    }
    rest.split_once('}').unwrap_or((rest, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_found_wherever_they_hide() {
        for format in [
            "{:>20000000000}",
            "{:1001}",
            "{:.4000000000f}",
            "{:,.1001f}",
            "a {} {{}} {{{:>99999}}}",
            "{0[}]:>99999}",
            "{a.b[:}]:>99999}",
            "{:}>99999}",
            "{:9>99999}",
            "{:\u{e9}^99999}",
            "{:099999d}",
            "{:99999999999999999999999999}",
            "{:>99999",
        ] {
            let error = format_cost(format, &[Value::from(1)]).unwrap_err().to_string();
            assert!(error.contains("above 1000"), "{format}: {error}");
        }
        for format in ["{} in 2026", "{0} {1} {2:>10}", "{{99999}}", "{:9>1000}", "{a[99999]}", ""]
        {
            assert!(format_cost(format, &[Value::from(1)]).is_ok(), "{format}");
        }
    }

    #[test]
    fn each_field_costs_all_arguments() {
        let args = [Value::from("x".repeat(600)), Value::from(vec![1; 200])];
        // The list is 600 bytes of text: brackets, numbers, separators.
        assert_eq!(format_cost("{0}{0}{1}", &args).unwrap(), 3 * (1_000 + 600 + 600) / 16);
        assert_eq!(format_cost("none", &args).unwrap(), 0);
    }
}
