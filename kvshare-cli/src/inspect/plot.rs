//! The picture of a cache as a file: layers down, positions across, K beside V.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Surveyed;
use super::heatmap::{HalfMap, Heatmap, Square};
use crate::output::{Failure, number};

const FONT: &str = "sans-serif";
const WIDTH: u32 = 1480;
const TITLE_HEIGHT: u32 = 76;
const LEGEND_HEIGHT: u32 = 44;

/// Columns of a half, at most: about one for each two dots.
const MOST_COLUMNS: usize = 300;

const INK: RGBColor = RGBColor(38, 38, 46);
const FAINT: RGBColor = RGBColor(120, 120, 130);
const UNWRITTEN: RGBColor = RGBColor(236, 236, 240);
const PARTLY: RGBColor = RGBColor(200, 196, 214);
const ODD: RGBColor = RGBColor(220, 38, 38);

/// The colours of matplotlib's viridis at even distances, which can be told apart in grey and by the colour-blind.
const VIRIDIS: [(u8, u8, u8); 9] = [
    (68, 1, 84),
    (71, 45, 123),
    (59, 82, 139),
    (44, 114, 142),
    (33, 145, 140),
    (40, 174, 128),
    (94, 201, 98),
    (173, 220, 48),
    (253, 231, 37),
];

/// Draws the first stream that was written into `path`.
pub(super) fn write(path: &Path, surveyed: &Surveyed) -> Result<(), Failure> {
    let maps = Heatmap::of(&surveyed.tensors, MOST_COLUMNS);
    let Some(map) = maps.first() else {
        return Err(Failure::new("there is nothing to draw: no row was written"));
    };
    // The only font there is: machines without a desktop have none. That it is one is known.
    let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::HACK_REGULAR);
    let layers = map.halves.iter().map(|half| half.layers.len()).max().unwrap_or(0) as u32;
    let size = (WIDTH, TITLE_HEIGHT + LEGEND_HEIGHT + 90 + (22 * layers).clamp(200, 1400));
    let title = title(surveyed, map);
    match path.extension().and_then(OsStr::to_str) {
        Some("svg") => draw(&SVGBackend::new(path, size).into_drawing_area(), map, &title).map_err(|e| e.to_string()),
        Some("png") => {
            draw(&BitMapBackend::new(path, size).into_drawing_area(), map, &title).map_err(|e| e.to_string())
        }
        _ => Err("its name must end in .svg or .png".to_owned()),
    }
    .map_err(|error| Failure::new(format!("cannot draw {}: {error}", path.display())))
}

fn title(surveyed: &Surveyed, map: &Heatmap) -> [String; 2] {
    let model = surveyed.header.model.as_ref().map_or("KV cache", |model| &model.name);
    let stream = if surveyed.header.params.as_ref().is_some_and(|params| params.n_stream > 1) {
        format!(", stream {}", map.stream)
    } else {
        String::new()
    };
    let column = match map.a_column {
        1 => "one column a position".to_owned(),
        count => format!("one column for {count} positions"),
    };
    [
        format!("{model}{stream}: what is written in the KV cache"),
        format!(
            "positions 0 to {} of {}; {column}; colour: root mean square of a row",
            map.positions.saturating_sub(1),
            map.cells
        ),
    ]
}

type Area<B> = DrawingArea<B, Shift>;
type DrawError<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

fn draw<B: DrawingBackend>(root: &Area<B>, map: &Heatmap, title: &[String; 2]) -> Result<(), DrawError<B>> {
    root.fill(&WHITE)?;
    let (head, rest) = root.split_vertically(TITLE_HEIGHT);
    head.draw(&Text::new(title[0].clone(), (28, 18), (FONT, 22).into_font().color(&INK)))?;
    head.draw(&Text::new(title[1].clone(), (28, 50), (FONT, 14).into_font().color(&FAINT)))?;
    let height = rest.dim_in_pixel().1;
    let (panels, legend) = rest.split_vertically(height - LEGEND_HEIGHT);
    for (panel, half) in panels.split_evenly((1, 2)).iter().zip(&map.halves) {
        let (grid, scale) = panel.split_horizontally(panel.dim_in_pixel().0 - 96);
        draw_half(&grid, map, half)?;
        draw_scale(&scale, half)?;
    }
    draw_legend(&legend)?;
    root.present()
}

fn draw_half<B: DrawingBackend>(area: &Area<B>, map: &Heatmap, half: &HalfMap) -> Result<(), DrawError<B>> {
    let layers = half.layers.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_left(20)
        .caption(if half.title == "K" { "K (keys)" } else { "V (values)" }, (FONT, 17).into_font().color(&INK))
        .x_label_area_size(46)
        .y_label_area_size(58)
        // A tick stands at the middle of its row or position.
        .build_cartesian_2d(-0.5..map.positions as f64 - 0.5, layers.max(1.0) - 0.5..-0.5)?;
    let layer_at = |place: &f64| {
        let name = half.layers.get(*place as usize).map(|(layer, _)| layer.to_string());
        name.filter(|_| place.fract() == 0.0).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(FAINT)
        .x_desc("position")
        .y_desc("layer")
        .x_labels(8)
        .y_labels(half.layers.len().clamp(1, 15))
        .x_label_formatter(&|place| format!("{place:.0}"))
        .y_label_formatter(&layer_at)
        .label_style((FONT, 13).into_font().color(&INK))
        .axis_desc_style((FONT, 15).into_font().color(&INK))
        .draw()?;
    for (row, (_, squares)) in half.layers.iter().enumerate() {
        for (range, square) in runs(squares) {
            let across =
                [range.start, range.end].map(|column| ((column as u64 * map.a_column).min(map.positions)) as f64 - 0.5);
            let corners = [(across[0], row as f64 - 0.5), (across[1], row as f64 + 0.5)];
            chart.draw_series(std::iter::once(Rectangle::new(corners, colour(half, square).filled())))?;
        }
    }
    Ok(())
}

/// Neighbours that look alike, as one: fewer and larger shapes, without seams between them.
fn runs(squares: &[Square]) -> Vec<(Range<usize>, Square)> {
    let mut runs: Vec<(Range<usize>, Square)> = Vec::new();
    for (column, square) in squares.iter().enumerate() {
        match runs.last_mut() {
            Some((range, last)) if last == square => range.end = column + 1,
            _ => runs.push((column..column + 1, *square)),
        }
    }
    runs
}

fn colour(half: &HalfMap, square: Square) -> RGBColor {
    match square {
        Square::Unwritten => UNWRITTEN,
        Square::Partly => PARTLY,
        Square::Odd => ODD,
        Square::Written(size) => viridis(half.level(size)),
    }
}

/// The colour at `level`, from 0 to 1.
fn viridis(level: f32) -> RGBColor {
    let place = level.clamp(0.0, 1.0) * (VIRIDIS.len() - 1) as f32;
    let below = (place as usize).min(VIRIDIS.len() - 2);
    let (a, b) = (VIRIDIS[below], VIRIDIS[below + 1]);
    let mix = |a: u8, b: u8| (f32::from(a) + (f32::from(b) - f32::from(a)) * (place - below as f32)).round() as u8;
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

/// The bar that says which colour is which size.
fn draw_scale<B: DrawingBackend>(area: &Area<B>, half: &HalfMap) -> Result<(), DrawError<B>> {
    let Some((least, most)) = half.sizes else { return Ok(()) };
    let (top, bottom, left, right) = (50, area.dim_in_pixel().1 as i32 - 60, 4, 22);
    for y in top..bottom {
        let level = (bottom - y) as f32 / (bottom - top) as f32;
        area.draw(&Rectangle::new([(left, y), (right, y + 1)], viridis(level).filled()))?;
    }
    let style = (FONT, 13).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    let middle = (f64::from(least).max(1e-30).ln() / 2.0 + f64::from(most).max(1e-30).ln() / 2.0).exp();
    for (y, value) in [(bottom, least.into()), ((top + bottom) / 2, middle), (top, most.into())] {
        area.draw(&Text::new(number(value), (right + 7, y), style.clone()))?;
    }
    Ok(())
}

fn draw_legend<B: DrawingBackend>(area: &Area<B>) -> Result<(), DrawError<B>> {
    let style = (FONT, 14).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    let meanings = [
        (UNWRITTEN, "not written"),
        (PARTLY, "some positions of the column written"),
        (ODD, "odd: not a number, infinite, huge, or all equal"),
    ];
    let mut x = 98;
    for (colour, meaning) in meanings {
        area.draw(&Rectangle::new([(x, 10), (x + 24, 26)], colour.filled()))?;
        area.draw(&Rectangle::new([(x, 10), (x + 24, 26)], FAINT.stroke_width(1)))?;
        area.draw(&Text::new(meaning, (x + 34, 18), style.clone()))?;
        x += 76 + 9 * meaning.len() as i32;
    }
    Ok(())
}
