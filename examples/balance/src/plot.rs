//! The cost of each step by rank, as bars: one panel a sampler. Wherever the bars of a step differ, ranks wait.

use std::fmt::Write;

const WIDTH: f64 = 1000.0;
const PANEL: f64 = 190.0;
/// Room for the title, and between panels for captions.
const TOP: f64 = 56.0;
const GAP: f64 = 44.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
/// Steps drawn; more would be too narrow to tell ranks apart.
const STEPS: usize = 40;
const COLORS: [&str; 8] =
    ["#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#65a30d", "#0891b2", "#dc2626"];

/// One sampler's steps.
pub(crate) struct Panel {
    pub(crate) caption: String,
    /// The cost of each step, by rank.
    pub(crate) costs: Vec<Vec<f64>>,
}

/// Returns the picture as the text of an SVG.
pub(crate) fn svg(title: &str, panels: &[Panel]) -> String {
    let all = panels.iter().flat_map(|panel| panel.costs.iter().flat_map(|costs| costs.iter().take(STEPS)));
    let highest = nice(all.copied().fold(1.0, f64::max));
    let height = TOP + panels.len() as f64 * (PANEL + GAP) + 24.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"14\" fill=\"#1f2937\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    text(&mut svg, (LEFT, 24.0), "start", &format!("<tspan font-size=\"18\">{}</tspan>", escaped(title)));
    key(&mut svg, panels.first().map_or(0, |panel| panel.costs.len()));
    for (at, panel) in panels.iter().enumerate() {
        draw(&mut svg, panel, TOP + GAP + at as f64 * (PANEL + GAP), highest);
    }
    text(&mut svg, (WIDTH / 2.0, height - 10.0), "middle", "step");
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, panel: &Panel, top: f64, highest: f64) {
    let bottom = top + PANEL;
    let y = |cost: f64| bottom - PANEL * cost / highest;
    text(svg, (LEFT, top - 12.0), "start", &escaped(&panel.caption));
    for tick in 0..=4 {
        let cost = highest * f64::from(tick) / 4.0;
        rect(svg, (LEFT, y(cost)), (WIDTH - LEFT - RIGHT, 1.0), "#e5e7eb");
        text(svg, (LEFT - 8.0, y(cost) + 5.0), "end", &format!("{cost:.0}"));
    }
    let steps = panel.costs.iter().map(Vec::len).min().unwrap_or(0).min(STEPS);
    let pitch = (WIDTH - LEFT - RIGHT) / steps.max(1) as f64;
    let ranks = panel.costs.len() as f64;
    // A fifth of each step is left free, to tell steps apart.
    let bar = 0.8 * pitch / ranks;
    for (rank, costs) in panel.costs.iter().enumerate() {
        for (step, cost) in costs.iter().take(steps).enumerate() {
            let x = LEFT + step as f64 * pitch + 0.1 * pitch + rank as f64 * bar;
            rect(svg, (x, y(*cost)), (bar, bottom - y(*cost)), COLORS[rank % COLORS.len()]);
        }
    }
}

fn key(svg: &mut String, ranks: usize) {
    for rank in 0..ranks {
        let x = LEFT + 84.0 * rank as f64;
        rect(svg, (x, 40.0), (14.0, 14.0), COLORS[rank % COLORS.len()]);
        text(svg, (x + 20.0, 52.0), "start", &format!("rank {rank}"));
    }
    text(svg, (WIDTH - RIGHT, 52.0), "end", "characters per rank and step");
}

// Writing into a string does not fail.
fn rect(svg: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the next number above that has one digit or one and a half, times a power of ten.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digits = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0];
    digits.into_iter().map(|digit| digit * power).find(|nice| *nice >= value).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_and_step_has_a_bar_no_higher_than_the_panel() {
        let panels: Vec<Panel> = (0..3)
            .map(|at| Panel {
                caption: format!("<{at}>"),
                costs: (0..4).map(|rank| vec![f64::from(rank) * 100.0 + 1.0; 50]).collect(),
            })
            .collect();
        let svg = svg("a & b", &panels);
        assert!(svg.contains("a &amp; b") && svg.contains("&lt;2&gt;"));
        for color in &COLORS[..4] {
            assert_eq!(svg.matches(color).count(), 3 * STEPS + 1);
        }
        let heights =
            svg.split("height=\"").skip(3).filter_map(|rest| rest.split('"').next()?.parse::<f64>().ok());
        assert!(heights.into_iter().all(|height| height <= PANEL));
    }

    #[test]
    fn no_steps_are_no_panic() {
        svg("", &[Panel { caption: String::new(), costs: vec![vec![]] }]);
        svg("", &[]);
        assert_eq!([0.9, 1.0, 301.0, 9.1].map(nice), [1.0, 1.0, 400.0, 10.0]);
    }
}
