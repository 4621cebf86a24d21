//! Many runs in one picture: a panel for each kind of algorithm, all with the same axes, and the run to compare with in
//! grey in each. Open this file when lines cannot be told apart.

use super::{Axis, Drawn, GREY, Key, Panel, PlotError, Series, finite, titled};
use plotters::prelude::*;
use std::fs;
use std::path::Path;

/// Panels beside each other.
const COLUMNS: usize = 2;
/// Width and height of a panel, in pixels.
const PANEL: (u32, u32) = (680, 430);
/// Width of the part for the names, in pixels.
const KEY: u32 = 240;
const COLORS: [RGBColor; 11] = [
    RGBColor(37, 99, 235),
    RGBColor(220, 38, 38),
    RGBColor(5, 150, 105),
    RGBColor(217, 119, 6),
    RGBColor(124, 58, 237),
    RGBColor(8, 145, 178),
    RGBColor(219, 39, 119),
    RGBColor(101, 163, 13),
    RGBColor(120, 53, 15),
    RGBColor(30, 41, 59),
    RGBColor(251, 146, 60),
];

/// One run.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Name of what ran.
    pub name: String,
    /// The caption of its panel.
    pub group: String,
    /// Its loss over whatever it is compared by. Losses that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// Losses of many runs.
#[derive(Debug, Clone)]
pub struct Comparison<'a> {
    /// Stands above the picture.
    pub title: &'a str,
    /// Quantity that the losses are compared by, with its unit.
    pub x: &'static str,
    /// Curves in the order of their panels, and within them of their colors. The first is drawn in all panels.
    pub curves: &'a [Curve],
}

impl Comparison<'_> {
    /// Draws into a file, whose directory must exist.
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
        let panels = self.panels();
        let mut svg = String::new();
        let rows = panels.len().div_ceil(COLUMNS).max(1);
        let size = (PANEL.0 * COLUMNS as u32, PANEL.1 * rows as u32 + 56);
        self.draw(SVGBackend::with_string(&mut svg, size), &panels, rows)
            .map_err(|error| PlotError::Draw(error.to_string()))?;
        Ok(svg)
    }

    fn draw(&self, backend: SVGBackend<'_>, panels: &[Panel], rows: usize) -> Drawn {
        let page = backend.into_drawing_area();
        let areas = titled(&page, self.title)?.split_evenly((rows, COLUMNS));
        areas.iter().zip(panels).try_for_each(|(area, panel)| panel.draw(area))?;
        page.present()
    }

    fn panels(&self) -> Vec<Panel> {
        let all = || self.curves.iter().flat_map(|curve| finite(curve.points.iter().copied()));
        let x = all().map(|point| point.0);
        let y = all().map(|point| point.1);
        let x = Axis::fitting(self.x, x);
        let y = Axis::fitting("training loss (nats)", y);
        let mut groups: Vec<&str> = self.curves.iter().map(|curve| curve.group.as_str()).collect();
        groups.dedup();
        let panel = |group: &str| {
            let members = self.curves.iter().filter(|curve| curve.group == group).zip(COLORS.iter().cycle());
            let reference = self.curves.iter().take(1).filter(|curve| curve.group != group);
            let line = |curve: &Curve, color: RGBColor| Series {
                points: finite(curve.points.iter().copied()),
                name: curve.name.clone(),
                color,
                width: 2,
                marked: false,
            };
            let series = reference.map(|curve| line(curve, GREY));
            let series = series.chain(members.map(|(curve, color)| line(curve, *color))).collect();
            Panel {
                caption: group.to_owned(),
                remark: String::new(),
                x: x.clone(),
                y: y.clone(),
                series,
                key: Key::Beside(KEY),
            }
        };
        groups.into_iter().map(panel).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_a_panel_with_its_curves_and_the_first_of_all() {
        let curve = |name: &str, group: &str| Curve {
            name: name.into(),
            group: group.into(),
            points: (1..40).map(|x| (f64::from(x), 2.0 / f64::from(x))).collect(),
        };
        let curves =
            [curve("one", "left"), curve("two", "left"), curve("three", "right"), curve("four", "last")];
        let svg = Comparison { title: "runs & more", x: "seconds", curves: &curves }.svg().unwrap();
        for (text, times) in [("\none\n", 3), ("\ntwo\n", 1), ("\nfour\n", 1), ("\nright\n", 1)] {
            assert_eq!(svg.matches(text).count(), times, "{text}: {svg}");
        }
    }

    #[test]
    fn nothing_is_a_picture_too() {
        assert!(Comparison { title: "", x: "bytes", curves: &[] }.svg().unwrap().contains("</svg>"));
    }
}
