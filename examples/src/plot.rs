//! A picture of a run: training loss, accuracy on held-out samples and throughput, side by side in one SVG. Open this
//! file to change what is shown; `plot/axis.rs` has the scales and their labels, `plot/comparison.rs` the picture of
//! many runs.

mod axis;
mod comparison;

pub use comparison::{Comparison, Curve};

use crate::metrics::{Epoch, Step};
use axis::Axis;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Width and height, in pixels.
const SIZE: (u32, u32) = (1280, 440);
/// Steps drawn one by one; of more, only the extremes of every bundle are.
const DRAWN_STEPS: usize = 800;
/// Steps from which on a smoothed line is drawn too.
const NOISY: usize = 25;
/// Points that are marked one by one.
const MARKED_POINTS: usize = 40;

const BLUE: RGBColor = RGBColor(37, 99, 235);
const PALE_BLUE: RGBColor = RGBColor(156, 187, 247);
const GREEN: RGBColor = RGBColor(5, 150, 105);
const ORANGE: RGBColor = RGBColor(217, 119, 6);
const DARK: RGBColor = RGBColor(31, 41, 55);
const GREY: RGBColor = RGBColor(107, 114, 128);
const FAINT: RGBColor = RGBColor(229, 231, 235);

/// A picture could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The drawing library refused.
    #[error("cannot draw the run: {0}; its figures are in metrics.jsonl, so draw them with another program")]
    Draw(String),

    /// The file could not be written.
    #[error(
        "cannot write {}: {cause}; make room there, or choose another directory for the run",
        path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's own words.
        cause: io::Error,
    },
}

type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// Figures to draw. The same points give the same bytes.
#[derive(Debug, Clone, Copy)]
pub struct Plot<'a> {
    /// Stands above the picture: what ran, on how many ranks.
    pub title: &'a str,
    /// Gives the loss. Losses that are not finite are left out.
    pub steps: &'a [Step],
    /// Gives accuracy and throughput.
    pub epochs: &'a [Epoch],
}

impl Plot<'_> {
    /// Draws into a file, for instance `plot.svg` in the run's directory, whose directory must exist.
    ///
    /// # Errors
    ///
    /// [`PlotError`] when the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        let path = path.as_ref();
        fs::write(path, self.svg()?).map_err(|cause| PlotError::Write { path: path.into(), cause })
    }

    /// Returns the picture as the text of an SVG.
    ///
    /// # Errors
    ///
    /// [`PlotError::Draw`] if the drawing library refuses.
    pub fn svg(&self) -> Result<String, PlotError> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, SIZE))
            .map_err(|error| PlotError::Draw(error.to_string()))?;
        Ok(svg)
    }

    fn draw(&self, backend: SVGBackend<'_>) -> Drawn {
        let page = backend.into_drawing_area();
        let drawing = titled(&page, self.title)?;
        let panels = [self.loss(), self.accuracy(), self.throughput()];
        for (area, panel) in drawing.split_evenly((1, panels.len())).iter().zip(&panels) {
            panel.draw(area)?;
        }
        page.present()
    }

    fn loss(&self) -> Panel {
        let points = finite(self.steps.iter().map(|step| (step.step as f64, step.loss)));
        let last = self.epochs.last().map(|epoch| format!("{} in the last epoch", short(epoch.loss)));
        let thin = Series {
            points: extremes(&points),
            name: "each step".into(),
            color: PALE_BLUE,
            width: 1,
            marked: true,
        };
        let smooth = Series {
            points: smoothed(&points),
            name: "smoothed".into(),
            color: BLUE,
            width: 2,
            marked: true,
        };
        Panel {
            caption: "Training loss".into(),
            remark: last.unwrap_or_default(),
            x: Axis::whole("step", points.iter().map(|point| point.0)),
            y: Axis::fitting("cross-entropy (nats)", points.iter().map(|point| point.1)),
            key: Key::Within(SeriesLabelPosition::UpperRight),
            series: match points.len() {
                ..NOISY => vec![Series { color: BLUE, width: 2, ..thin }],
                _ => vec![thin, smooth],
            },
        }
    }

    fn accuracy(&self) -> Panel {
        let points = self.by_epoch(|epoch| 100.0 * epoch.test_accuracy);
        Panel {
            caption: "Accuracy on held-out samples".into(),
            remark: points.last().map(|point| format!("{:.1} % at the end", point.1)).unwrap_or_default(),
            x: Axis::whole("epoch", points.iter().map(|point| point.0)),
            y: Axis::linear("correct (%)", points.iter().map(|point| point.1)),
            key: Key::Within(SeriesLabelPosition::UpperRight),
            series: vec![Series { points, name: "accuracy".into(), color: GREEN, width: 2, marked: true }],
        }
    }

    fn throughput(&self) -> Panel {
        let points = self.by_epoch(|epoch| epoch.samples_per_s);
        let mean = points.iter().map(|point| point.1).sum::<f64>() / points.len().max(1) as f64;
        Panel {
            caption: "Throughput of all ranks".into(),
            remark: if points.is_empty() { String::new() } else { format!("{mean:.0} samples/s on average") },
            x: Axis::whole("epoch", points.iter().map(|point| point.0)),
            // From zero, so that heights compare, and with some room above.
            y: Axis::linear("samples/s", points.iter().map(|point| 1.05 * point.1).chain([0.0])),
            key: Key::Within(SeriesLabelPosition::UpperRight),
            series: vec![Series { points, name: "throughput".into(), color: ORANGE, width: 2, marked: true }],
        }
    }

    fn by_epoch(&self, value: impl Fn(&Epoch) -> f64) -> Vec<(f64, f64)> {
        finite(self.epochs.iter().map(|epoch| (epoch.epoch as f64, value(epoch))))
    }
}

/// One drawing.
struct Panel {
    caption: String,
    /// The figure to take home, in small letters.
    remark: String,
    x: Axis,
    y: Axis,
    /// From back to front.
    series: Vec<Series>,
    key: Key,
}

/// Place where the key does not hide lines.
enum Key {
    Within(SeriesLabelPosition),
    /// On the right, in a column so wide.
    Beside(u32),
}

/// One line.
struct Series {
    points: Vec<(f64, f64)>,
    name: String,
    color: RGBColor,
    width: u32,
    /// True if points are marked if they are few.
    marked: bool,
}

impl Panel {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
        let above = Pos::new(HPos::Left, VPos::Top);
        area.draw_text(&self.caption, &text(21, &DARK).pos(above), (78, 4))?;
        area.draw_text(&self.remark, &text(17, &GREY).pos(above), (78, 28))?;
        self.draw_chart(area)?;
        if self.series.iter().all(|series| series.points.is_empty()) {
            let (width, height) = area.dim_in_pixel();
            let middle = text(18, &GREY).pos(Pos::new(HPos::Center, VPos::Center));
            area.draw_text("nothing recorded", &middle, (width as i32 / 2 + 26, height as i32 / 2))?;
        }
        Ok(())
    }

    fn draw_chart(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
        let mut builder = ChartBuilder::on(area);
        let beside = if let Key::Beside(width) = self.key { width } else { 24 };
        builder.margin_top(58).margin_right(beside).margin_bottom(14).margin_left(14);
        builder.x_label_area_size(54).y_label_area_size(64);
        let mut chart = builder.build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let mut mesh = chart.configure_mesh();
        mesh.bold_line_style(FAINT).axis_style(GREY).label_style(text(17, &DARK));
        mesh.x_desc(self.x.name).y_desc(self.y.name).axis_desc_style(text(18, &DARK)).draw()?;
        for series in &self.series {
            let color = series.color;
            let width = series.width;
            let line = LineSeries::new(series.points.iter().copied(), color.stroke_width(width));
            let sample = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(width));
            chart.draw_series(line)?.label(series.name.clone()).legend(sample);
            if series.points.len() <= MARKED_POINTS && series.marked {
                let dot = |&point: &(f64, f64)| Circle::new(point, 4, color.filled());
                chart.draw_series(series.points.iter().map(dot))?;
            }
        }
        match &self.key {
            Key::Within(position) if self.series.len() > 1 => {
                let mut key = chart.configure_series_labels();
                key.position(position.clone()).background_style(WHITE.mix(0.8));
                Ok(key.label_font(text(17, &DARK)).draw()?)
            }
            Key::Within(_) => Ok(()),
            Key::Beside(width) => self.draw_key(area, *width as i32),
        }
    }

    fn draw_key(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, width: i32) -> Drawn {
        let left = area.dim_in_pixel().0 as i32 - width + 14;
        for (series, y) in self.series.iter().zip((70..).step_by(22)) {
            let sample = vec![(left, y), (left + 18, y)];
            area.draw(&PathElement::new(sample, series.color.stroke_width(series.width)))?;
            let place = text(17, &DARK).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw_text(&series.name, &place, (left + 26, y))?;
        }
        Ok(())
    }
}

/// Writes the title; what remains is below it.
fn titled<'a>(
    page: &DrawingArea<SVGBackend<'a>, Shift>,
    title: &str,
) -> Result<DrawingArea<SVGBackend<'a>, Shift>, DrawingAreaErrorKind<io::Error>> {
    page.fill(&WHITE)?;
    // Control characters have no place in XML.
    let title: String = title.chars().filter(|letter| !letter.is_control()).collect();
    page.draw_text(&title, &text(25, &DARK).pos(Pos::new(HPos::Left, VPos::Top)), (24, 18))?;
    Ok(page.split_vertically(56).1)
}

/// Returns the style of letters of a size, in plotters' units: 1.24 of them are a pixel of the SVG.
fn text(size: i32, color: &'static RGBColor) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size)).color(color)
}

fn finite(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    points.filter(|point| point.1.is_finite()).collect()
}

/// Returns the lowest and the highest point of each of equally long runs, so that a long line keeps its outline.
fn extremes(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= DRAWN_STEPS {
        return points.to_vec();
    }
    let ends = |bundle: &[(f64, f64)]| {
        let low = bundle.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        let high = bundle.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut ends: Vec<_> = low.into_iter().chain(high).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends
    };
    points.chunks((2 * points.len()).div_ceil(DRAWN_STEPS)).flat_map(ends).collect()
}

/// Returns the mean of the points around each point: a 25th of the line on both sides, less at the ends. At the
/// beginning, where a loss falls fast, not many more on the right than on the left, lest the line begin too low.
fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let reach = (points.len() / 25).max(2);
    let mean = |centre: usize| {
        let reach = reach.min(centre + 1);
        let around = &points[centre.saturating_sub(reach)..(centre + reach + 1).min(points.len())];
        (points[centre].0, around.iter().map(|point| point.1).sum::<f64>() / around.len() as f64)
    };
    (0..points.len()).step_by(points.len().div_ceil(DRAWN_STEPS).max(1)).map(mean).collect()
}

/// Returns a loss in a few letters, also when it is tiny.
fn short(loss: f64) -> String {
    if loss.abs() < 0.01 { format!("{loss:.1e}") } else { format!("{loss:.3}") }
}

#[cfg(test)]
mod tests;
