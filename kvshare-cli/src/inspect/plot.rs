//! The picture of a cache as a file: layers down, positions across, K beside V.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::PathBuf;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::heatmap::{HalfMap, Heatmap, Square};
use super::{Finding, Surveyed};
use crate::output::Failure;

/// For titles and numbers.
const FONT: &str = "sans-serif";
/// For sentences. plotters leaves out the room before a letter, so that small words in another font run together.
const SENTENCES: &str = "monospace";
const WIDTH: u32 = 1480;
const LEFT: i32 = 28;
const TITLE_HEIGHT: u32 = 52;
const LINE_HEIGHT: u32 = 20;
const SUBTITLE_HEIGHT: u32 = 30;
const LEGEND_HEIGHT: u32 = 48;

/// Letters of a line, at most.
const LINE_LENGTH: usize = 165;

/// Dots that an odd square is wide and high, at least: one position of thousands must be seen.
const ODD_SIZE: i32 = 9;

/// Columns of a half, at most: about one for each two dots.
const MOST_COLUMNS: usize = 300;

const INK: RGBColor = RGBColor(38, 38, 46);
const FAINT: RGBColor = RGBColor(100, 100, 110);
const UNWRITTEN: RGBColor = RGBColor(236, 236, 240);
const PARTLY: RGBColor = RGBColor(150, 150, 160);
const ODD: RGBColor = RGBColor(200, 20, 30);

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

/// Findings that a picture carries, at most: it says where to look, and the report has them all.
const MOST_FINDINGS: usize = 3;

/// Streams that are drawn, at most.
const MOST_STREAMS: usize = 8;

/// The file to draw into.
#[derive(Clone, Debug)]
pub(super) struct PlotFile {
    path: PathBuf,
    format: Format,
}

#[derive(Clone, Copy, Debug)]
enum Format {
    Svg,
    Png,
}

impl PlotFile {
    /// From the command line: the name's end says the format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let format = match path.extension().and_then(OsStr::to_str) {
            Some("svg") => Format::Svg,
            Some("png") => Format::Png,
            _ => return Err("its name must end in .svg or .png".to_owned()),
        };
        Ok(Self { path, format })
    }

    /// Draws every stream that was written, and the first of `findings`.
    pub fn draw(&self, surveyed: &Surveyed, findings: &[Finding]) -> Result<(), Failure> {
        let maps = Heatmap::of(&surveyed.tensors, MOST_COLUMNS);
        let maps = &maps[..maps.len().min(MOST_STREAMS)];
        if maps.is_empty() {
            return Err(Failure::new("there is nothing to draw: no row was written"));
        }
        // The only fonts there are: machines without a desktop have none. That they are fonts is known.
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
        let _ = register_font(SENTENCES, FontStyle::Normal, epaint_default_fonts::HACK_REGULAR);
        let picture = Picture::of(surveyed, maps, findings);
        let size = (WIDTH, picture.height());
        match self.format {
            Format::Svg => {
                picture.draw(&SVGBackend::new(&self.path, size).into_drawing_area()).map_err(|e| e.to_string())
            }
            Format::Png => {
                picture.draw(&BitMapBackend::new(&self.path, size).into_drawing_area()).map_err(|e| e.to_string())
            }
        }
        .map_err(|error| Failure::new(format!("cannot draw {}: {error}", self.path.display())))
    }
}

type Area<B> = DrawingArea<B, Shift>;
type DrawError<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

/// All that is drawn, from top to bottom.
struct Picture<'a> {
    title: String,
    findings: Vec<String>,
    streams: Vec<(String, &'a Heatmap)>,
}

impl<'a> Picture<'a> {
    fn of(surveyed: &Surveyed, maps: &'a [Heatmap], findings: &[Finding]) -> Self {
        let model = surveyed.header.model.as_ref().map_or("KV cache", |model| &model.name);
        let has_streams = surveyed.header.params.as_ref().is_some_and(|params| params.n_stream > 1);
        // What is wrong with descriptors is not to be seen here.
        let findings: Vec<&Finding> =
            findings.iter().filter(|finding| !["descriptor", "cpu_access"].contains(&finding.kind)).collect();
        let mut lines: Vec<String> = findings.iter().take(MOST_FINDINGS).map(ToString::to_string).collect();
        if findings.len() > MOST_FINDINGS {
            lines.push(format!("and {} more findings", findings.len() - MOST_FINDINGS));
        }
        Self {
            title: format!("{model}: what is written in the KV cache"),
            findings: lines.iter().map(|line| shortened(line)).collect(),
            streams: maps.iter().map(|map| (subtitle(map, has_streams), map)).collect(),
        }
    }

    fn height(&self) -> u32 {
        let streams = self.streams.iter().map(|(_, map)| SUBTITLE_HEIGHT + panel_height(map));
        TITLE_HEIGHT + LINE_HEIGHT * self.findings.len() as u32 + streams.sum::<u32>() + LEGEND_HEIGHT
    }

    fn draw<B: DrawingBackend>(&self, root: &Area<B>) -> Result<(), DrawError<B>> {
        root.fill(&WHITE)?;
        let (head, mut rest) = root.split_vertically(TITLE_HEIGHT + LINE_HEIGHT * self.findings.len() as u32);
        head.draw(&Text::new(self.title.clone(), (LEFT, 18), (FONT, 24).into_font().color(&INK)))?;
        for (line, finding) in (0..).zip(&self.findings) {
            let y = (TITLE_HEIGHT + LINE_HEIGHT * line) as i32;
            head.draw(&Text::new(finding.clone(), (LEFT, y), (SENTENCES, 14).into_font().color(&ODD)))?;
        }
        for (subtitle, map) in &self.streams {
            let (head, below) = rest.split_vertically(SUBTITLE_HEIGHT);
            head.draw(&Text::new(subtitle.clone(), (LEFT, 10), (SENTENCES, 14).into_font().color(&FAINT)))?;
            let (panels, below) = below.split_vertically(panel_height(map));
            for (panel, half) in panels.split_evenly((1, 2)).iter().zip(&map.halves) {
                let (grid, scale) = panel.split_horizontally(panel.dim_in_pixel().0 - 104);
                draw_half(&grid, map, half)?;
                draw_scale(&scale, half)?;
            }
            rest = below;
        }
        draw_legend(&rest)?;
        root.present()
    }
}

fn panel_height(map: &Heatmap) -> u32 {
    let layers = map.halves.iter().map(|half| half.layers.len()).max().unwrap_or(0) as u32;
    90 + (22 * layers).clamp(200, 1400)
}

fn subtitle(map: &Heatmap, has_streams: bool) -> String {
    let stream = if has_streams { format!("stream {}: ", map.stream) } else { String::new() };
    let column = match map.a_column {
        1 => "one column a position".to_owned(),
        count => format!("one column for {count} positions"),
    };
    let last = map.positions.saturating_sub(1);
    format!("{stream}positions 0 to {last} of {} cells; {column}; colour: root mean square (RMS) of a row", map.cells)
}

/// A line that fits the picture.
fn shortened(line: &str) -> String {
    if line.chars().count() <= LINE_LENGTH {
        return line.to_owned();
    }
    line.chars().take(LINE_LENGTH).chain(['…']).collect()
}

fn draw_half<B: DrawingBackend>(area: &Area<B>, map: &Heatmap, half: &HalfMap) -> Result<(), DrawError<B>> {
    let layers = half.layers.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_left(20)
        .caption(if half.title == "K" { "K (keys)" } else { "V (values)" }, (FONT, 18).into_font().color(&INK))
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
        .label_style((FONT, 14).into_font().color(&INK))
        .axis_desc_style((FONT, 16).into_font().color(&INK))
        .draw()?;
    let mut odd = Vec::new();
    for (row, (_, squares)) in half.layers.iter().enumerate() {
        for (range, square) in runs(squares) {
            let across =
                [range.start, range.end].map(|column| ((column as u64 * map.a_column).min(map.positions)) as f64 - 0.5);
            let corners = [(across[0], row as f64 - 0.5), (across[1], row as f64 + 0.5)];
            if square == Square::Odd {
                odd.push(corners.map(|corner| chart.backend_coord(&corner)));
            } else {
                chart.draw_series(std::iter::once(Rectangle::new(corners, colour(half, square).filled())))?;
            }
        }
    }
    // Last, since they may be larger than their places.
    let origin = area.get_base_pixel();
    for corners in odd {
        draw_odd(area, corners.map(|(x, y)| (x - origin.0, y - origin.1)))?;
    }
    Ok(())
}

/// An odd place: its white and black borders are seen on every colour by everyone.
fn draw_odd<B: DrawingBackend>(area: &Area<B>, [from, to]: [(i32, i32); 2]) -> Result<(), DrawError<B>> {
    let widened = |a: i32, b: i32| {
        let more = (ODD_SIZE - (b - a).abs()).max(0);
        (a.min(b) - more / 2, a.max(b) + more - more / 2)
    };
    let ((left, right), (top, bottom)) = (widened(from.0, to.0), widened(from.1, to.1));
    area.draw(&Rectangle::new([(left - 2, top), (right + 2, bottom)], BLACK.filled()))?;
    area.draw(&Rectangle::new([(left - 1, top + 1), (right + 1, bottom - 1)], WHITE.filled()))?;
    area.draw(&Rectangle::new([(left, top + 2), (right, bottom - 2)], ODD.filled()))
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
    let style = (FONT, 14).into_font().color(&INK);
    area.draw(&Text::new("RMS", (left, top - 24), style.clone()))?;
    let style = style.pos(Pos::new(HPos::Left, VPos::Center));
    let middle = (f64::from(least).max(1e-30).ln() / 2.0 + f64::from(most).max(1e-30).ln() / 2.0).exp();
    for (y, value) in [(bottom, least.into()), ((top + bottom) / 2, middle), (top, most.into())] {
        area.draw(&PathElement::new([(right, y), (right + 4, y)], FAINT))?;
        area.draw(&Text::new(three_digits(value), (right + 8, y), style.clone()))?;
    }
    Ok(())
}

/// `6.96`, `0.0485`, `1.2e-5`.
fn three_digits(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e5).contains(&value.abs()) {
        return format!("{value:.1e}");
    }
    let before_the_point = if value == 0.0 { 1 } else { value.abs().log10().floor() as i32 + 1 };
    format!("{value:.*}", usize::try_from(3 - before_the_point).unwrap_or(0))
}

fn draw_legend<B: DrawingBackend>(area: &Area<B>) -> Result<(), DrawError<B>> {
    let style = (SENTENCES, 14).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    let meanings = [
        (Some(UNWRITTEN), "not written (all zero)"),
        (Some(PARTLY), "only some of a column's positions written"),
        (None, "odd: not a number, infinite, huge, or all equal (drawn larger than it is)"),
    ];
    let mut x = 78;
    for (colour, meaning) in meanings {
        let corners = [(x, 12), (x + 24, 28)];
        if let Some(colour) = colour {
            area.draw(&Rectangle::new(corners, colour.filled()))?;
            area.draw(&Rectangle::new(corners, FAINT.stroke_width(1)))?;
        } else {
            draw_odd(area, [(x + 6, 11), (x + 18, 29)])?;
        }
        area.draw(&Text::new(meaning, (x + 34, 20), style.clone()))?;
        x += 34 + area.estimate_text_size(meaning, &style)?.0 as i32 + 40;
    }
    Ok(())
}
