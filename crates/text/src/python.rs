//! Writes values as Python does, since that is what models saw in training.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Depth to which `tojson` follows a value.
const DEPTH_MAX: usize = 160;

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: separators ", " and ": ", key order kept,
/// nothing escaped for HTML.
pub(crate) fn to_json(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    let mut out = String::new();
    write(value, indent, 0, &mut out)?;
    Ok(out)
}

fn write(
    value: &Value,
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    let refuse = |reason: String| Err(Error::new(ErrorKind::InvalidOperation, reason));
    if depth > DEPTH_MAX {
        return refuse(format!("tojson: nested deeper than {DEPTH_MAX} levels"));
    }
    let new_line = |out: &mut String, depth: usize| {
        if let Some(width) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut any = false;
            for item in value.try_iter()? {
                if any {
                    out.push_str(separator);
                }
                any = true;
                new_line(out, depth + 1);
                write(&item, indent, depth + 1, out)?;
            }
            if any {
                new_line(out, depth);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            let mut any = false;
            for key in value.try_iter()? {
                if any {
                    out.push_str(separator);
                }
                any = true;
                new_line(out, depth + 1);
                match key.as_str() {
                    Some(key) => quote(key, out),
                    None => quote(&scalar(&key).unwrap_or_else(|| key.to_string()), out),
                }
                out.push_str(": ");
                write(&value.get_item(&key)?, indent, depth + 1, out)?;
            }
            if any {
                new_line(out, depth);
            }
            out.push('}');
        }
        kind => return refuse(format!("tojson: a value of kind {kind} has no JSON form")),
    }
    Ok(())
}

/// `str(value)` of a boolean, `None` or a number.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::None => Some("None".into()),
        ValueKind::Bool => Some(if value.is_true() { "True" } else { "False" }.into()),
        ValueKind::Number => Some(number(value)),
        _ => None,
    }
}

fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(x) if !value.is_integer() => float(x),
        _ => value.to_string(),
    }
}

/// `repr(x)`: the shortest digits that read back as `x`, with an exponent below 1e-4 and from 1e16.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || x == 0.0 {
        let plain = format!("{x}");
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `strftime(format)` of a UTC time, given in seconds since 1970: the date and time directives that
/// chat templates use. An unknown directive stays as it is written.
pub(crate) fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] =
        ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('H') => out.push_str(&format!("{:02}", second / 3600)),
            Some('M') => out.push_str(&format!("{:02}", second / 60 % 60)),
            Some('S') => out.push_str(&format!("{:02}", second % 60)),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month (1..=12) and day (1..=31) of a day count since 1970-01-01: Howard Hinnant's
/// `civil_from_days`, which counts from 1 March so that the leap day comes last.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;

    #[test]
    fn json_is_pythons() {
        let value: serde_json::Value = serde_json::from_str(
            r#"{"b": [1, 2.5, true, null, "é<&>'\"\n\u0001\u007f"], "a": {}, "c": [], "d": -7}"#,
        )
        .unwrap();
        let value = Value::from(Serde(&value));
        assert_eq!(
            to_json(&value, None).unwrap(),
            "{\"b\": [1, 2.5, true, null, \"é<&>'\\\"\\n\\u0001\u{7f}\"], \"a\": {}, \"c\": [], \"d\": -7}"
        );
        let small = Value::from(Serde(serde_json::json!({"a": [1, {}]})));
        assert_eq!(to_json(&small, Some(2)).unwrap(), "{\n  \"a\": [\n    1,\n    {}\n  ]\n}");
        assert!(to_json(&Value::UNDEFINED, None).is_err());
    }

    #[test]
    fn floats_are_pythons() {
        for (x, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (2.5, "2.5"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e22, "1.25e+22"),
            (-1e300, "-1e+300"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(float(x), expected);
        }
    }

    #[test]
    fn dates() {
        assert_eq!(strftime("%Y-%m-%d %A %H:%M:%S", 0), "1970-01-01 Thursday 00:00:00");
        assert_eq!(strftime("%d %B %Y, %a", 951_782_400), "29 February 2000, Tue");
        assert_eq!(strftime("%d %b %Y %H:%M:%S%%%Q%", 1_767_225_599), "31 Dec 2025 23:59:59%%Q%");
    }
}
