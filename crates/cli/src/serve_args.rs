//! Flags of `serve`.

use crate::args::ModelArgs;
use crate::engine_args::EngineArgs;
use clap::{Args, ValueHint};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const SERVE_ABOUT: &str = "\
Serve the model to programs and to a browser: OpenAI's chat completions, completions and responses, \
Anthropic's messages, and a chat page at the root. Any model name that a client insists on is answered by \
the model that is loaded. Sampling follows the checkpoint's generation_config.json where a request does not \
say.

Only programs of this machine are served unless --host says otherwise, which needs an API key. SIGINT and \
SIGTERM end the server: running replies may end, and the prefix cache is saved.";

pub(crate) const SERVE_EXAMPLES: &str = "\
Examples:
  calla serve
  calla serve --port 9000 --parallel 8 --disk-cache ~/.cache/calla
  CALLA_API_KEY=secret calla serve --host 0.0.0.0 --allowed-host mymachine.local
  ANTHROPIC_BASE_URL=http://127.0.0.1:8080 ANTHROPIC_AUTH_TOKEN=any claude
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"any\", \"messages\": [{\"role\": \"user\", \"content\": \"12 + 30 = ?\"}]}'";

#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Address to listen on; others than this machine's own need an API key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,

    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,

    /// Key that clients have to show; may be given several times
    ///
    /// CALLA_API_KEY holds one too, and other users of this machine cannot see it there.
    #[arg(long = "api-key", value_name = "KEY", env = "CALLA_API_KEY", hide_env_values = true)]
    pub(crate) api_keys: Vec<String>,

    /// File with a key on each line
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Name by which clients may call this machine, beside localhost and its address; may be given several
    /// times
    #[arg(long = "allowed-host", value_name = "NAME")]
    pub(crate) allowed_hosts: Vec<String>,

    /// Web page that may call this server, such as `https://chat.example`; may be given several times
    #[arg(long = "allowed-origin", value_name = "ORIGIN")]
    pub(crate) allowed_origins: Vec<String>,

    /// Name of the model in answers; the folder's without it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Requests that run at once
    #[arg(long, value_name = "N", default_value_t = 4, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) parallel: u16,

    /// Requests that may wait; further ones are answered 429
    #[arg(long, value_name = "N", default_value_t = 256, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) queue: u16,

    /// Unload the model after so long without a request (30m, 2h); the next request loads it again
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) idle_unload: Option<Duration>,

    /// Keep the thinking of earlier answers in the prompt where a request does not say
    ///
    /// An agent's next step then continues the earlier prompt, and only its own tokens are computed.
    #[arg(long)]
    pub(crate) preserve_thinking: bool,

    /// Time that running replies have after the server was told to end
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "30s")]
    pub(crate) drain: Duration,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `90s`, `30m`, `2h`, or a number of seconds.
fn parse_time(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no time: write 90s, 30m or 2h");
    let digits = text.trim_end_matches(['s', 'm', 'h']);
    let number: u64 = digits.parse().map_err(|_| bad())?;
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(bad()),
    };
    // A year is for ever.
    number
        .checked_mul(unit)
        .filter(|&seconds| seconds <= 366 * 24 * 3600)
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{text:?} is longer than a year"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(parse_time("90").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_time("30m").unwrap(), Duration::from_secs(1800));
        assert_eq!(parse_time("2h").unwrap(), Duration::from_secs(7200));
        for bad in ["", "m", "1d", "-1s", "1.5h", "3mm", "99999999999h"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
