//! Pictures of the suite, as SVG: lines over steps, or points with their names.

use std::fmt::Write;

/// Width and height of the part that is drawn in, and its distance from the left and upper border, in pixels.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
/// Width of the part for the names.
const KEY: f64 = 230.0;
/// Height of a name.
const LINE: f64 = 14.0;
const COLORS: [&str; 10] = [
    "#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#db2777", "#65a30d", "#78350f",
    "#1e293b",
];
const DASHES: [&str; 4] = ["none", "6 3", "2 2", "8 2 2 2"];

/// Algorithm in a picture: a line, or one point.
#[derive(Debug, Clone)]
pub(super) struct Drawn {
    pub(super) name: String,
    /// Points, of which those that are not finite and positive are left out.
    pub(super) points: Vec<(f64, f64)>,
}

/// Picture with two axes.
#[derive(Debug, Clone)]
pub(super) struct Picture<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// True if the horizontal axis is logarithmic.
    pub(super) log_x: bool,
    /// True if the vertical axis is logarithmic.
    pub(super) log_y: bool,
    pub(super) drawn: Vec<Drawn>,
}

/// Range of an axis.
struct Range {
    low: f64,
    high: f64,
    log: bool,
}

impl Range {
    fn of(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let (low, high) = values
            .map(|value| if log { value.log10() } else { value })
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let room = 0.04 * (high - low).max(0.1);
        Range { low: low - room, high: high + room, log }
    }

    /// Returns the share of the axis that is below a value.
    fn share(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }

    /// Returns values to be marked, with their names.
    fn marks(&self) -> Vec<(f64, String)> {
        let step =
            if self.log { ((self.high - self.low) / 6.0).ceil() } else { nice((self.high - self.low) / 6.0) };
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        let mark = |at: i64| {
            let value = at as f64 * step;
            if self.log {
                (10f64.powf(value), format!("1e{value}"))
            } else {
                (value, format!("{}", rounded(value)))
            }
        };
        (first..=last).map(mark).collect()
    }
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

impl Picture<'_> {
    /// Returns the picture as SVG.
    pub(super) fn svg(&self) -> String {
        let usable = |(x, y): &(f64, f64)| {
            x.is_finite() && y.is_finite() && (!self.log_x || *x > 0.0) && (!self.log_y || *y > 0.0)
        };
        let points = || self.drawn.iter().flat_map(|drawn| drawn.points.iter().copied().filter(usable));
        let x = Range::of(points().map(|(x, _)| x), self.log_x);
        let y = Range::of(points().map(|(_, y)| y), self.log_y);
        let across = |value: f64| LEFT + WIDTH * x.share(value);
        let down = |value: f64| TOP + HEIGHT * (1.0 - y.share(value));
        let mut svg = self.frame();
        for (value, name) in x.marks() {
            let at = across(value);
            line(&mut svg, (at, TOP), (at, TOP + HEIGHT), "#e5e7eb");
            text(&mut svg, at, TOP + HEIGHT + 16.0, "middle", &name);
        }
        for (value, name) in y.marks() {
            let at = down(value);
            line(&mut svg, (LEFT, at), (LEFT + WIDTH, at), "#e5e7eb");
            text(&mut svg, LEFT - 6.0, at + 4.0, "end", &name);
        }
        for (at, drawn) in self.drawn.iter().enumerate() {
            let usable = drawn.points.iter().filter(|point| usable(point));
            let shown: Vec<(f64, f64)> = usable.map(|(x, y)| (across(*x), down(*y))).collect();
            draw(&mut svg, at, &drawn.name, &shown);
        }
        svg + "</svg>\n"
    }

    fn frame(&self) -> String {
        let width = LEFT + WIDTH + KEY;
        let height = (TOP + HEIGHT + 50.0).max(TOP + LINE * (self.drawn.len() as f64 + 1.0));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut svg, LEFT, 22.0, "start", self.title);
        text(&mut svg, LEFT + WIDTH / 2.0, TOP + HEIGHT + 36.0, "middle", self.x);
        let _ = writeln!(
            svg,
            "<text transform=\"translate(14,{}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            TOP + HEIGHT / 2.0,
            self.y
        );
        svg
    }
}

/// Adds what is drawn as number `at`: a point with its name, or a line with its name in the key.
fn draw(svg: &mut String, at: usize, name: &str, shown: &[(f64, f64)]) {
    let color = COLORS[at % COLORS.len()];
    let dash = DASHES[at / COLORS.len() % DASHES.len()];
    match shown {
        [] => {}
        [(x, y)] => {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{color}\"/>");
            text(svg, x + 6.0, y - 5.0, "start", name);
        }
        _ => {
            let path: Vec<String> = shown.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let style =
                format!("fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\" stroke-dasharray=\"{dash}\"");
            let _ = writeln!(svg, "<polyline points=\"{}\" {style}/>", path.join(" "));
            let key = TOP + LINE * (at as f64 + 0.5);
            let right = LEFT + WIDTH + 12.0;
            let _ = writeln!(svg, "<polyline points=\"{right},{key} {},{key}\" {style}/>", right + 24.0);
            text(svg, right + 30.0, key + 4.0, "start", name);
        }
    }
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), color: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{color}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_points_are_drawn_and_what_cannot_be_is_left_out() {
        let drawn =
            |name: &str, points: &[(f64, f64)]| Drawn { name: name.to_owned(), points: points.to_vec() };
        let svg = Picture {
            title: "title",
            x: "steps",
            y: "distance",
            log_x: false,
            log_y: true,
            drawn: vec![
                drawn("line", &[(0.0, 0.0), (1.0, 1.0), (2.0, 10.0)]),
                drawn("point", &[(1.0, 5.0)]),
                drawn("nothing", &[(f64::NAN, 1.0)]),
            ],
        }
        .svg();
        assert!(svg.contains(">line<") && svg.contains("<circle") && svg.contains(">point<"));
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains(">nothing<"));
    }
}
