//! Figures as drawings: SVG.

use super::report::Row;
use anyhow::anyhow;
use plotters::prelude::*;

/// Size in points.
const SIZE: (u32, u32) = (720, 400);

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Drawing {
    Prefill,
    Decode,
}

impl Drawing {
    pub(super) const ALL: [Self; 2] = [Self::Prefill, Self::Decode];

    /// Part of the file's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// The drawing: figures and floors over the length of context, both axes logarithmic.
    ///
    /// # Errors
    /// If there is no figure, or it cannot be drawn.
    pub(super) fn svg(self, rows: &[Row], device: &str) -> anyhow::Result<String> {
        let points = |value: fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
            let point = |row: &Row| Some((row.context as f64, value(row)?));
            let mut points: Vec<_> = rows.iter().filter_map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let (measured, floor) = match self {
            Self::Prefill => (points(|r| r.prefill_tokens_per_s), points(|r| r.prefill_floor)),
            Self::Decode => (points(|r| r.decode_tokens_per_s), points(|r| r.decode_floor)),
        };
        let all = || measured.iter().chain(&floor);
        if measured.is_empty() {
            return Err(anyhow!("there is no figure of {} to draw", self.name()));
        }
        let least = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(f64::INFINITY, f64::min);
        let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max);
        let x = least(|p| p.0) / 1.2..most(|p| p.0) * 1.2;
        let y = least(|p| p.1) / 1.5..most(|p| p.1) * 1.5;
        let mut text = String::new();
        draw(&mut text, &format!("{}, tokens/s: {device}", self.name()), x, y, &measured, &floor)
            .map_err(|error| anyhow!("cannot draw {}: {error}", self.name()))?;
        Ok(text)
    }
}

type Points = [(f64, f64)];

fn draw(
    text: &mut String,
    title: &str,
    x: std::ops::Range<f64>,
    y: std::ops::Range<f64>,
    measured: &Points,
    floor: &Points,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|e| words(&e))?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(x.log_scale(), y.log_scale())
        .map_err(|e| words(&e))?;
    let whole = |value: &f64| format!("{value:.0}");
    chart
        .configure_mesh()
        .x_desc("tokens of context")
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(|e| words(&e))?;
    for (points, colour, name) in [(measured, BLUE, "measured"), (floor, RED, "floor")] {
        if points.is_empty() {
            continue;
        }
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)
            .map_err(|e| words(&e))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
    }
    chart
        .configure_series_labels()
        // Between a floor and what was measured.
        .position(SeriesLabelPosition::MiddleLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()
        .map_err(|e| words(&e))?;
    root.present().map_err(|e| words(&e))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_floors_are_drawn() {
        let row = |context, rate| Row {
            context,
            prefill_tokens_per_s: None,
            decode_tokens_per_s: Some(rate),
            prefill_floor: None,
            decode_floor: Some(2.0 * rate),
            time_to_first_token_ms: None,
            peak_memory_bytes: None,
        };
        let rows = [row(4096, 80.0), row(256, 100.0)];
        let svg = Drawing::Decode.svg(&rows, "a <device>").unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        // A line with its two points, and the legend's.
        for colour in ["#0000FF", "#FF0000"] {
            let lines =
                svg.lines().filter(|line| line.contains(colour) && line.contains("<polyline"));
            assert_eq!(lines.count(), 2, "{colour}: {svg}");
            let points =
                svg.lines().filter(|line| line.contains(colour) && line.contains("<circle"));
            assert_eq!(points.count(), 2, "{colour}: {svg}");
        }
        assert!(svg.contains("a &lt;device&gt;"), "{svg}");
        assert!(Drawing::Prefill.svg(&rows, "x").is_err());
    }
}
