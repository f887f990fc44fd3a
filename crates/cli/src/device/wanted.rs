//! What `--device` asks for.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use std::ffi::OsStr;
use std::fmt;

/// Where to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The fastest that this machine has and that holds the model.
    Auto,
    /// The processor.
    Cpu,
    /// The plain f32 oracle.
    Reference,
    /// A Mac's GPU.
    Metal,
    /// The NVIDIA GPU of this number, as CUDA counts them.
    Cuda(u32),
}

impl Wanted {
    fn parse(text: &str) -> Result<Self, String> {
        let cuda = |number: &str| {
            let number = number.parse().map_err(|_| {
                format!("{number:?} is no number of a GPU: write cuda:0 for the first one")
            });
            number.map(Self::Cuda)
        };
        match text.split_once(':') {
            Some(("cuda", number)) => cuda(number),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            // A variable that is empty is as good as unset.
            None if text == "auto" || text.is_empty() => Ok(Self::Auto),
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "reference" => Ok(Self::Reference),
            None if text == "metal" => Ok(Self::Metal),
            _ => Err("expected auto, cpu, metal, cuda, cuda:N or reference".to_owned()),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Reference => f.write_str("reference"),
            Self::Metal => f.write_str("metal"),
            Self::Cuda(0) => f.write_str("cuda"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// Parses [`Wanted`], and tells help and completions the words for it.
#[derive(Clone)]
pub(crate) struct WantedParser;

impl TypedValueParser for WantedParser {
    type Value = Wanted;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Wanted, clap::Error> {
        let parser = StringValueParser::new().try_map(|text| Wanted::parse(&text));
        parser.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = [
            (
                "auto",
                "Apple GPU, else NVIDIA GPU, else CPU: the first that is there and holds the model",
            ),
            ("cpu", "All cores; takes every format"),
            ("metal", "Apple GPU, from M1 on"),
            (
                "cuda",
                "NVIDIA GPU, the first that CUDA shows; cuda:1 is the second. Needs the driver, and NVRTC if this build has no compiled kernels",
            ),
            ("reference", "The plain f32 oracle: slow, for comparison"),
        ];
        Some(Box::new(values.into_iter().map(|(name, help)| PossibleValue::new(name).help(help))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_they_are_written() {
        for text in ["auto", "cpu", "reference", "metal", "cuda", "cuda:7"] {
            assert_eq!(Wanted::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Wanted::parse("cuda:0"), Ok(Wanted::Cuda(0)));
        for text in ["gpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cuda:1:2", "cpu:0", "metal:0"] {
            assert!(Wanted::parse(text).is_err(), "{text}");
        }
    }
}
