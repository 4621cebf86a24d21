//! Pictures as SVG: small panels, with the same axes or each with its own, that have lines over steps, or points, and a
//! key.

mod labels;

use labels::{Area, PointLabel, placed};
use std::fmt::Write;

/// Width and height of the part of a panel that is drawn in, in pixels.
const WIDTH: f64 = 270.0;
const HEIGHT: f64 = 190.0;
/// Room for the marks of the vertical axis, and for the key.
const LEFT: f64 = 52.0;
const KEY: f64 = 235.0;
/// Height of the picture's title, and of a panel's title and horizontal axis.
const TITLE: f64 = 34.0;
const ABOVE: f64 = 24.0;
const BELOW: f64 = 44.0;
/// Bound of the values drawn, so that differences are finite.
const LARGEST: f64 = 1e300;
/// Height of a line of a key.
const LINE: f64 = 14.0;
/// Margin on the right of a panel without a key there.
const RIGHT: f64 = 26.0;
/// Width of a key within a panel.
const WITHIN: f64 = 92.0;
const COLORS: [&str; 8] =
    ["#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#db2777", "#65a30d"];
const DASHES: [&str; 3] = ["none", "6 3", "2 2"];
/// Color of the lines behind the points.
const GRID: &str = "#e5e7eb";
/// Color of the line that every panel shows for comparison.
const REFERENCE: &str = "#9ca3af";

/// Content of a picture: a line, or one point.
#[derive(Debug, Clone)]
pub struct PictureContent {
    /// Name in the key.
    pub name: String,
    /// Points, of which those that are not finite, or not positive on a logarithmic axis, are left out.
    pub points: Vec<(f64, f64)>,
    /// True if it is drawn for comparison, in grey.
    pub reference: bool,
}

impl PictureContent {
    /// Creates a coloured line.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        PictureContent { name: name.into(), points, reference: false }
    }
}

/// Names of the axes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Axes<'a> {
    /// Name of the horizontal axis, with its unit.
    pub x: &'a str,
    /// Name of the vertical axis, with its unit.
    pub y: &'a str,
    /// True if the horizontal axis is logarithmic.
    pub log_x: bool,
    /// True if the vertical axis is logarithmic.
    pub log_y: bool,
}

/// Part of a picture.
#[derive(Debug, Clone)]
pub struct Panel<'a> {
    /// Stands above it.
    pub title: String,
    /// Axes of this panel alone; `None` for those of the picture. A panel of several lines with its own axes also has its own
    /// key.
    pub axes: Option<Axes<'a>>,
    /// Lines and points, in the order of the key.
    pub drawn: Vec<PictureContent>,
}

/// Panels in rows.
#[derive(Debug, Clone)]
pub struct Picture<'a> {
    /// Stands above all panels.
    pub title: &'a str,
    /// Number of panels in a row.
    pub columns: usize,
    /// Axes of all panels without their own.
    pub axes: Axes<'a>,
    /// Panels, row by row. Panels without content are left out, unless they have their own axes.
    pub panels: Vec<Panel<'a>>,
}

/// Range of an axis.
struct AxisRange {
    low: f64,
    high: f64,
    log: bool,
}

impl AxisRange {
    fn of(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let (low, high) = values
            .map(|value| if log { value.log10() } else { value })
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let room = 0.04 * (high - low).max(0.1);
        AxisRange { low: low - room, high: high + room, log }
    }

    /// Returns the share of the axis that is below a value.
    fn share(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }

    /// Returns values to be marked, with their names.
    fn marks(&self) -> Vec<(f64, String)> {
        if self.log {
            return self.powers();
        }
        let step = nice((self.high - self.low) / 5.0);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        let mark = |at: i64| (at as f64 * step, format!("{}", rounded(at as f64 * step)));
        (first..=last).map(mark).collect()
    }

    /// Returns the powers of ten to be marked, with 2 and 5 times each if these are few.
    fn powers(&self) -> Vec<(f64, String)> {
        let wide = self.high - self.low;
        let step = (wide / 5.0).ceil().max(1.0) as usize;
        let factors: &[f64] = if wide < 2.2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let exponents = (self.low.floor() as i32..=self.high.floor() as i32).step_by(step);
        let values = exponents.flat_map(|exponent| factors.iter().map(move |f| f * 10f64.powi(exponent)));
        let within = |value: &f64| (self.low..=self.high).contains(&value.log10());
        values.filter(within).map(|value| (value, named(value))).collect()
    }
}

/// Returns the name of a number on a logarithmic axis.
fn named(value: f64) -> String {
    if (1e-3..1e5).contains(&value) { format!("{}", rounded(value)) } else { format!("{value:.0e}") }
}

/// Returns 1, 2 or 5 times a power of ten, near to a number.
fn nice(number: f64) -> f64 {
    let power = 10f64.powf(number.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= number);
    factor.unwrap_or(10.0) * power
}

fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Axes with their ranges.
struct Scales<'a> {
    axes: Axes<'a>,
    x: AxisRange,
    y: AxisRange,
}

impl<'a> Scales<'a> {
    /// Returns axes that all points of these panels fit on.
    fn of(axes: Axes<'a>, panels: &[&Panel<'_>]) -> Self {
        let points =
            || panels.iter().flat_map(|panel| panel.drawn.iter().flat_map(|drawn| axes.usable(drawn)));
        let x = AxisRange::of(points().map(|(x, _)| x), axes.log_x);
        let y = AxisRange::of(points().map(|(_, y)| y), axes.log_y);
        Scales { axes, x, y }
    }
}

impl Axes<'_> {
    /// Returns the points that can be drawn.
    fn usable(&self, drawn: &PictureContent) -> Vec<(f64, f64)> {
        let usable = |(x, y): &(f64, f64)| {
            x.abs() < LARGEST && y.abs() < LARGEST && (!self.log_x || *x > 0.0) && (!self.log_y || *y > 0.0)
        };
        drawn.points.iter().copied().filter(usable).collect()
    }
}

impl Picture<'_> {
    /// Returns the picture as SVG.
    pub fn svg(&self) -> String {
        let panels: Vec<&Panel<'_>> =
            self.panels.iter().filter(|panel| panel.axes.is_some() || !panel.drawn.is_empty()).collect();
        let alike: Vec<&Panel<'_>> = panels.iter().filter(|panel| panel.axes.is_none()).copied().collect();
        let shared = Scales::of(self.axes, &alike);
        let column = LEFT + WIDTH + if alike.is_empty() { RIGHT } else { KEY };
        let mut body = String::new();
        let mut top = TITLE;
        for row in panels.chunks(self.columns.max(1)) {
            for (at, panel) in row.iter().enumerate() {
                let place = (at as f64 * column + LEFT, top + ABOVE);
                match panel.axes {
                    Some(axes) => draw_panel(&mut body, panel, &Scales::of(axes, &[panel]), place),
                    None => draw_panel(&mut body, panel, &shared, place),
                }
            }
            let longest = alike.iter().filter(|one| row.iter().any(|panel| std::ptr::eq(*panel, **one)));
            let longest = longest.map(|panel| panel.drawn.len()).max().unwrap_or(0);
            top += ABOVE + BELOW + HEIGHT.max(LINE * longest as f64 - BELOW / 2.0);
        }
        let width = self.columns.min(panels.len()) as f64 * column;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{top}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let title = escaped(self.title);
        text(
            &mut svg,
            (LEFT, 22.0),
            "start",
            &format!("<tspan font-size=\"13\" font-weight=\"bold\">{title}</tspan>"),
        );
        svg + &body + "</svg>\n"
    }
}

/// Adds a panel whose upper left corner is at `(left, top)`.
fn draw_panel(svg: &mut String, panel: &Panel<'_>, scales: &Scales<'_>, (left, top): (f64, f64)) {
    let across = |value: f64| left + WIDTH * scales.x.share(value);
    let down = |value: f64| top + HEIGHT * (1.0 - scales.y.share(value));
    let title = escaped(&panel.title);
    text(svg, (left, top - 7.0), "start", &format!("<tspan font-weight=\"bold\">{title}</tspan>"));
    for (value, name) in scales.x.marks() {
        let at = across(value);
        line(svg, (at, top), (at, top + HEIGHT), GRID);
        text(svg, (at, top + HEIGHT + 14.0), "middle", &name);
    }
    for (value, name) in scales.y.marks() {
        let at = down(value);
        line(svg, (left, at), (left + WIDTH, at), GRID);
        text(svg, (left - 5.0, at + 4.0), "end", &name);
    }
    let middle = (left + WIDTH / 2.0, top + HEIGHT / 2.0);
    text(svg, (middle.0, top + HEIGHT + 29.0), "middle", scales.axes.x);
    let turned = format!("translate({:.1},{:.1}) rotate(-90)", left - 40.0, middle.1);
    let _ = writeln!(svg, "<text transform=\"{turned}\" text-anchor=\"middle\">{}</text>", scales.axes.y);
    let area = Area { left, top, right: left + WIDTH, bottom: top + HEIGHT };
    let place = |drawn: &PictureContent| {
        scales.axes.usable(drawn).into_iter().map(|(x, y)| (across(x), down(y))).collect()
    };
    let shown: Vec<Vec<(f64, f64)>> = panel.drawn.iter().map(place).collect();
    let numbers = if panel.axes.is_some() { vec![None; shown.len()] } else { numbers(&shown, area) };
    let key = match panel.axes {
        None => Some(left + WIDTH + 12.0),
        Some(_) => (shown.len() > 1).then_some(left + WIDTH - WITHIN),
    };
    if panel.axes.is_some() && shown.iter().all(Vec::is_empty) {
        text(svg, middle, "middle", "nothing recorded");
    }
    // Lines for comparison lie behind the others.
    let behind = |at: &usize| !(panel.drawn[*at].reference && shown[*at].len() > 1);
    let mut order: Vec<usize> = (0..shown.len()).collect();
    order.sort_by_key(behind);
    for at in order {
        let key = key.map(|key| (key, top + LINE * (at as f64 + 0.5)));
        draw(svg, at, &panel.drawn[at], (&shown[at], numbers[at]), key);
    }
}

/// Escapes a text for SVG, without its control characters.
fn escaped(text: &str) -> String {
    let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Places the numbers of those items that are single points.
fn numbers(shown: &[Vec<(f64, f64)>], area: Area) -> Vec<Option<PointLabel>> {
    let digits = |number: usize| number.to_string().len();
    let single = |(number, points): (usize, &Vec<(f64, f64)>)| match points[..] {
        [point] => Some((point, digits(number))),
        _ => None,
    };
    placed(&(1..).zip(shown).map(single).collect::<Vec<_>>(), area)
}

/// Adds line or point number `at` of a panel, with its name in the key. A point gets its number if there is room.
fn draw(
    svg: &mut String,
    at: usize,
    drawn: &PictureContent,
    (shown, label): (&[(f64, f64)], Option<PointLabel>),
    key: Option<(f64, f64)>,
) {
    let color = if drawn.reference { REFERENCE } else { COLORS[at % COLORS.len()] };
    let name = escaped(&drawn.name);
    let in_key = |svg: &mut String, indent: f64, words: &str| {
        if let Some((left, top)) = key {
            text(svg, (left + indent, top + 4.0), "start", words);
        }
    };
    match shown {
        [] => in_key(svg, 26.0, &format!("{name} —")),
        [point] => {
            let number = at + 1;
            if let Some(label) = label {
                numbered(svg, *point, number, label);
            }
            circle(svg, *point, color);
            if let Some((left, top)) = key {
                circle(svg, (left + 4.0, top), color);
            }
            in_key(svg, 12.0, &format!("{number} {name}"));
        }
        _ => {
            let path: Vec<String> = shown.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let dash = DASHES[at / COLORS.len() % DASHES.len()];
            let style =
                format!("fill=\"none\" stroke=\"{color}\" stroke-width=\"1.6\" stroke-dasharray=\"{dash}\"");
            let _ = writeln!(svg, "<polyline points=\"{}\" {style}/>", path.join(" "));
            if let Some((left, top)) = key {
                let _ = writeln!(svg, "<polyline points=\"{left},{top} {},{top}\" {style}/>", left + 22.0);
            }
            in_key(svg, 27.0, &name);
        }
    }
}

/// Adds the number of a point, joined to it by a line if it is far.
fn numbered(svg: &mut String, (x, y): (f64, f64), number: usize, label: PointLabel) {
    let (across, along) = label.middle;
    if label.is_far {
        // Up to where the number begins.
        let end = (x + 0.6 * (across - x), y + 0.6 * (along - y));
        line(svg, (x, y), end, "#6b7280");
    }
    let size = labels::SIZE;
    let words = format!("<tspan font-size=\"{size}\">{number}</tspan>");
    text(svg, (across, along + 0.36 * size), "middle", &words);
}

fn circle(svg: &mut String, (x, y): (f64, f64), color: &str) {
    let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{color}\"/>");
}

/// Adds a thin line.
fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), color: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{color}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_points_are_drawn_and_what_cannot_be_is_left_out() {
        let drawn = |name: &str, points: &[(f64, f64)]| PictureContent {
            name: name.to_owned(),
            points: points.to_vec(),
            reference: false,
        };
        let panel = Panel {
            title: "panel".to_owned(),
            axes: None,
            drawn: vec![
                drawn("line", &[(0.0, 0.0), (1.0, 1.0), (2.0, 10.0)]),
                drawn("point", &[(1.0, 5.0)]),
                drawn("nothing", &[(f64::NAN, 1.0)]),
            ],
        };
        let empty = Panel { title: "empty".to_owned(), axes: None, drawn: Vec::new() };
        let panels = vec![panel, empty];
        let axes = Axes { x: "steps", y: "distance", log_y: true, ..Axes::default() };
        let svg = Picture { title: "<title>\u{7} & more", columns: 2, axes, panels }.svg();
        assert!(svg.contains("&lt;title> &amp; more"));
        assert!(svg.contains(">line<") && svg.contains("<circle") && svg.contains(">2 point<"));
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains(">empty<"));
        assert!(svg.contains(">nothing —<"));
    }
}
