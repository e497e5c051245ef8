//! The picture of a cache on a terminal.

use std::fmt::Write as _;

use anstyle::{Ansi256Color, AnsiColor, Color, Style};

use super::heatmap::{HalfMap, Heatmap, Square};
use super::reader::TensorSurvey;
use crate::output::{is_colourful, number, terminal_width};

/// From small to large.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// From small to large, as of xterm's 256 colours: dark blue, green, yellow, after matplotlib's viridis.
const COLOURS: [u8; 8] = [61, 67, 73, 79, 78, 114, 149, 220];

/// The picture of each stream that was written.
pub(super) fn of(tensors: &[TensorSurvey]) -> Vec<String> {
    let (colourful, width) = (is_colourful(), terminal_width());
    // Both halves, and the layers' numbers.
    let columns = width.saturating_sub(10) / 2;
    Heatmap::of(tensors, columns.max(8)).iter().map(|map| draw(map, colourful)).collect()
}

fn draw(map: &Heatmap, colourful: bool) -> String {
    let stream = if map.stream == 0 { String::new() } else { format!(" of stream {}", map.stream) };
    let column = match map.a_column {
        1 => "each".to_owned(),
        count => format!("{count} at a time"),
    };
    let mut text = format!(
        "Rows{stream} by size (root mean square), layers down, positions 0 to {} of {} across, {column}:\n\nlayer",
        map.positions.saturating_sub(1),
        map.cells
    );
    let width = map.halves[0].layers.first().map_or(0, |(_, squares)| squares.len()).max(1);
    for half in &map.halves {
        let _ = write!(text, "  {:<width$}", half.title);
    }
    let mut numbers: Vec<u32> =
        map.halves.iter().flat_map(|half| half.layers.iter().map(|(layer, _)| *layer)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for layer in numbers {
        text = text.trim_end_matches(' ').to_owned();
        let _ = write!(text, "\n{layer:>5}");
        for half in &map.halves {
            text.push_str("  ");
            let squares = half.layers.iter().find(|(found, _)| *found == layer);
            match squares {
                Some((_, squares)) => {
                    squares.iter().for_each(|square| draw_square(half, *square, colourful, &mut text))
                }
                None => text.extend(std::iter::repeat_n(' ', width)),
            }
        }
    }
    text.push_str("\n\n");
    for half in &map.halves {
        if let Some((least, most)) = half.sizes {
            let _ = write!(text, "{} ", half.title);
            draw_square(half, Square::Written(least), colourful, &mut text);
            let _ = write!(text, " {} to ", number(least.into()));
            draw_square(half, Square::Written(most), colourful, &mut text);
            let _ = write!(text, " {}   ", number(most.into()));
        }
    }
    for (square, meaning) in
        [(Square::Unwritten, "not written"), (Square::Partly, "some written"), (Square::Odd, "odd")]
    {
        draw_square(&map.halves[0], square, colourful, &mut text);
        let _ = write!(text, " {meaning}   ");
    }
    text.trim_end().to_owned()
}

fn draw_square(half: &HalfMap, square: Square, colourful: bool, text: &mut String) {
    let (glyph, style) = match square {
        Square::Unwritten => ('·', Style::new().dimmed()),
        Square::Partly => ('░', Style::new()),
        // A thin sign among blocks: its ground is seen from afar.
        Square::Odd => {
            let (white, red) = (Color::Ansi(AnsiColor::BrightWhite), Color::Ansi(AnsiColor::Red));
            ('!', Style::new().bold().fg_color(Some(white)).bg_color(Some(red)))
        }
        Square::Written(size) => {
            let level = (half.level(size) * (LEVELS.len() - 1) as f32).round() as usize;
            let colour = Ansi256Color(COLOURS[level.min(COLOURS.len() - 1)]);
            (LEVELS[level.min(LEVELS.len() - 1)], Style::new().fg_color(Some(Color::Ansi256(colour))))
        }
    };
    // Writing to a String cannot fail.
    let _ = if colourful { write!(text, "{style}{glyph}{style:#}") } else { write!(text, "{glyph}") };
}
