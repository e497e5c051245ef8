//! Judging what was measured: which promise is broken, at which length, on which route, and what that probably means.

use serde::Serialize;

use super::rounds::{Handoff, Length, Pair, Route, Run};

/// What a decoder may read by system calls during a shared handoff: a page, and this part of what a state file holds.
const PAGE: u64 = 4096;
const PART_OF_FILE: u64 = 100;

/// How far apart two routes' rows may be in any layer. Right implementations of one model's arithmetic were seen to differ by
/// 6 % in the worst layer, where they round differently; RoPE by the wrong pairs made it 50 %.
const APART: f64 = 0.12;

/// How much of a text stands before the first difference in a message, and behind it.
const BEFORE: usize = 16;
const BEHIND: usize = 24;

/// A broken promise.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The prompt, if it is one's alone.
    pub(super) prompt_tokens: Option<usize>,
    pub(super) route: Route,
    /// What is wrong.
    pub(super) what: String,
    /// Why it probably is.
    pub(super) probably: String,
}

/// What share plus adopt cost, medians in milliseconds, at the shortest prompt and at the longest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Times {
    pub(super) shortest_ms: f64,
    pub(super) longest_ms: f64,
    /// How many times as long the longest prompt's took.
    pub(super) ratio: f64,
    /// How many times as long that prompt is.
    pub(super) prompt_ratio: f64,
}

impl Times {
    /// Nothing, where the shared route did not work at both lengths or they are the same.
    pub(super) fn of(lengths: &[Length]) -> Option<Self> {
        let (shortest, longest) = (lengths.first()?, lengths.last()?);
        if shortest.prompt_tokens == longest.prompt_tokens {
            return None;
        }
        let shared =
            |length: &Length| median(length.handoff(Route::Shared)?, |run| Some(run.share_ms? + run.adopt_ms?));
        let (shortest_ms, longest_ms) = (shared(shortest)?, shared(longest)?);
        Some(Self {
            shortest_ms,
            longest_ms,
            ratio: longest_ms / shortest_ms,
            prompt_ratio: longest.prompt_tokens as f64 / shortest.prompt_tokens as f64,
        })
    }
}

/// The median of a time over the runs of a handoff that have it.
pub(super) fn median(handoff: &Handoff, time: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    let mut times: Vec<f64> = handoff.runs.iter().filter_map(time).collect();
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// All that is wrong; nothing if the gate is passed.
pub(super) fn judge(lengths: &[Length], times: Option<&Times>, ignore_none: bool, flat: Option<f64>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let refusal = lengths.iter().flat_map(|length| &length.handoffs).find(|handoff| handoff.cannot_share);
    if let Some(Handoff { failure: Some(words), .. }) = refusal {
        findings.push(Finding {
            prompt_tokens: None,
            route: Route::Shared,
            what: format!("the decoder cannot share its cache: {words}"),
            probably: "it is a stock llama-server, or runs where nothing can export its memory; --file-only tests the \
                       file route alone"
                .to_owned(),
        });
    }
    for length in lengths {
        findings.extend(length.handoffs.iter().flat_map(|handoff| of_handoff(length, handoff)));
        findings.extend(of_results(length, ignore_none));
        findings.extend(of_copies(length));
    }
    if let (Some(times), Some(limit)) = (times, flat)
        && times.ratio > limit
    {
        findings.push(Finding {
            prompt_tokens: lengths.last().map(|length| length.prompt_tokens),
            route: Route::Shared,
            what: format!(
                "share plus adopt took {:.2} times as long as at the shortest prompt, not {limit}",
                times.ratio
            ),
            probably: "the decoder copies or checks cells as it shares or adopts them; or the machine was busy: more \
                       --runs tell"
                .to_owned(),
        });
    }
    findings
}

/// What is wrong with the handoffs of one prompt by one route, apart from their text.
fn of_handoff(length: &Length, handoff: &Handoff) -> Vec<Finding> {
    let finding = |what, probably: &str| Finding {
        prompt_tokens: Some(length.prompt_tokens),
        route: handoff.route,
        what,
        probably: probably.to_owned(),
    };
    let mut findings = Vec::new();
    if let Some(words) = handoff.failure.as_ref().filter(|_| !handoff.cannot_share) {
        findings.push(finding(format!("the handoff failed: {words}"), "these are the words of whoever failed"));
    }
    if let Some(run) = handoff.runs.iter().find(|run| run.answer.evaluated != 1) {
        let what = format!("after the handoff the decoder evaluated {} prompt tokens, not 1", run.answer.evaluated);
        findings.push(finding(
            what,
            "the decoder made no use of the cells: its slot holds other tokens than were asked for, or another request \
             came between",
        ));
    }
    let mut runs = handoff.runs.iter();
    if let Some(first) = runs.next()
        && let Some(other) = runs.find(|run| run.answer.text != first.answer.text)
    {
        let difference = difference("the first handoff's", &first.answer.text, "a later one's", &other.answer.text);
        findings.push(finding(
            format!("two handoffs gave two texts: {difference}"),
            "the provider does not compute the same rows each time, or writes on after it has reported",
        ));
    }
    findings
}

/// Whether some route gave another text or other rows than the others, and which it probably was.
fn of_results(length: &Length, ignore_none: bool) -> Option<Finding> {
    let finding = |route, what, probably: &str| {
        let prompt_tokens = Some(length.prompt_tokens);
        Some(Finding { prompt_tokens, route, what, probably: probably.to_owned() })
    };
    if length.none.text.trim().is_empty() {
        return finding(
            Route::None,
            "the model answers nothing, so there is no text to compare".to_owned(),
            "it ends its answer to this prompt at once; other --lengths cut the prompt elsewhere",
        );
    }
    let shared_by_itself = difference_between(length, Route::Shared, Route::None);
    if let Some(what) = difference_between(length, Route::Shared, Route::File) {
        return match difference_between(length, Route::File, Route::Shared) {
            Some(what) if shared_by_itself.is_none() => finding(
                Route::File,
                what,
                "the state file holds other rows than the provider wrote into the decoder's memory: V transposed or not, \
                 quantized rows not rotated, another type, or layers out of order",
            ),
            _ => finding(
                Route::Shared,
                what,
                "the rows in the decoder's memory are not those of the file: a row at another offset or in another type \
                 than the header says, one not written, or one written after the provider had reported",
            ),
        };
    }
    if ignore_none {
        return None;
    }
    match (shared_by_itself, difference_between(length, Route::File, Route::None)) {
        (Some(what), _) => finding(
            Route::Shared,
            what,
            "the provider's rows are not the decoder's own, whichever way they travel: it computes them wrongly, or in \
             another precision, which --ignore-none lets pass",
        ),
        (None, Some(what)) => finding(
            Route::File,
            what,
            "the rows in the file are not the decoder's own: the provider computes or writes them wrongly, or in another \
             precision, which can change a word",
        ),
        (None, None) => None,
    }
}

/// In what the results of two routes differ; nothing if in nothing, or if one of them has none.
fn difference_between(length: &Length, route: Route, other: Route) -> Option<String> {
    let is_pair = |pair: &&Pair| [(route, other), (other, route)].contains(&(pair.route, pair.other));
    let rows = length
        .rows
        .iter()
        .find(is_pair)
        .map(|pair| &pair.farthest)
        .filter(|farthest| farthest.error > APART || farthest.error.is_nan());
    let rows = rows.map(|farthest| {
        let percent = 100.0 * farthest.error;
        format!("layer {}'s {} differs by {percent:.0} % from {}", farthest.layer, farthest.half, whose(other))
    });
    let texts = length.text(route).zip(length.text(other)).filter(|(text, other)| text != other);
    let texts = texts.map(|(text, other_text)| difference(whose(route), text, whose(other), other_text));
    match (rows, texts) {
        (Some(rows), Some(texts)) => Some(format!("{rows}, and the text is another: {texts}")),
        (Some(rows), None) => Some(format!("{rows}, though the text is the same")),
        (None, texts) => texts.map(|texts| format!("the text is another: {texts}")),
    }
}

/// Whether the decoder read more than a message's worth while its memory was shared.
fn of_copies(length: &Length) -> Option<Finding> {
    let read = length.handoff(Route::Shared)?.runs.iter().filter_map(|run| run.decoder_read_bytes).max()?;
    let file_bytes = length.handoff(Route::File).and_then(|file| file.runs.first()).map_or(0, |run| run.crossed_bytes);
    (read > PAGE + file_bytes / PART_OF_FILE).then(|| Finding {
        prompt_tokens: Some(length.prompt_tokens),
        route: Route::Shared,
        what: format!("the decoder read {read} bytes during the handoff, which is to copy none"),
        probably: "it fetches the rows from somewhere instead of using them where the provider wrote them".to_owned(),
    })
}

fn whose(route: Route) -> &'static str {
    match route {
        Route::Shared => "the shared route's",
        Route::File => "the file route's",
        Route::None => "the decoder's own",
    }
}

/// Where two texts differ first, in words.
fn difference(name: &str, text: &str, other_name: &str, other: &str) -> String {
    let common = text.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| -> String {
        let skipped = common.saturating_sub(BEFORE);
        let part: String = text.chars().skip(skipped).take(common - skipped + BEHIND).collect();
        if part.chars().count() <= common - skipped { format!("{part:?}, where it ends") } else { format!("{part:?}") }
    };
    format!("from character {} on {name} has {}, and {other_name} {}", common + 1, around(text), around(other))
}

#[cfg(test)]
mod tests {
    use super::super::rounds::Answer;
    use super::super::rows::Apart;
    use super::*;

    fn run(text: &str, evaluated: u64) -> Run {
        Run {
            answer: Answer { text: text.to_owned(), evaluated },
            share_ms: Some(0.5),
            provider_ms: 9.0,
            adopt_ms: Some(0.25),
            restore_ms: None,
            crossed_bytes: 100_000,
            decoder_read_bytes: Some(8),
        }
    }

    fn handoff(route: Route, texts: &[&str]) -> Handoff {
        let runs = texts.iter().map(|text| run(text, 1)).collect();
        Handoff { route, runs, failure: None, cannot_share: false }
    }

    fn length(shared: &[&str], file: &[&str], none: &str) -> Length {
        let handoffs = [(Route::Shared, shared), (Route::File, file)];
        Length {
            prompt_tokens: 100,
            none: Answer { text: none.to_owned(), evaluated: 100 },
            rows: Vec::new(),
            handoffs: handoffs
                .iter()
                .filter(|(_, texts)| !texts.is_empty())
                .map(|(route, texts)| handoff(*route, texts))
                .collect(),
        }
    }

    fn findings(length: Length, ignore_none: bool) -> Vec<(Route, String, String)> {
        let findings = judge(&[length], None, ignore_none, None);
        findings.into_iter().map(|finding| (finding.route, finding.what, finding.probably)).collect()
    }

    #[test]
    fn equal_texts_pass() {
        assert!(findings(length(&["a b"; 3], &["a b"; 3], "a b"), false).is_empty());
        assert!(findings(length(&[], &["a b"], "a b"), false).is_empty());
    }

    #[test]
    fn whoever_is_alone_with_its_text_is_named() {
        let (same, other) = ("The moon is old.", "The moon was new.");
        let cases: [(Length, Route, &str); 5] = [
            (length(&[other], &[same], same), Route::Shared, "not those of the file"),
            (length(&[same], &[other], same), Route::File, "the state file holds other rows"),
            (length(&[other], &[same], "The sun"), Route::Shared, "not those of the file"),
            (length(&[same], &[same], other), Route::Shared, "--ignore-none"),
            (length(&[], &[same], other), Route::File, "the rows in the file"),
        ];
        for (length, route, probably) in cases {
            let found = findings(length, false);
            assert_eq!(found.len(), 1, "{probably}: {found:?}");
            assert!(found[0].0 == route && found[0].2.contains(probably), "{found:?}");
            assert!(found[0].1.contains("from character 10 on"), "{found:?}");
        }
    }

    #[test]
    fn a_layer_that_is_wrong_is_named_even_where_the_text_is_the_same() {
        let pairs = [(Route::Shared, Route::None), (Route::File, Route::None), (Route::File, Route::Shared)];
        // The errors of these pairs, whom they incriminate, and whether another precision may be the reason.
        let cases: [([f64; 3], Option<Route>, bool); 6] = [
            ([0.0, 0.0, 0.0], None, true),
            ([0.06, 0.06, 0.02], None, true),
            ([1.0, 0.0, 1.0], Some(Route::Shared), false),
            ([0.0, 1.0, 1.0], Some(Route::File), false),
            ([1.0, 1.0, 0.0], Some(Route::Shared), true),
            ([f64::NAN, 0.0, f64::NAN], Some(Route::Shared), false),
        ];
        for (errors, guilty, is_precision) in cases {
            let case = || {
                let mut length = length(&["a"], &["a"], "a");
                let apart = |error| Apart { layer: 5, half: "V", error };
                let pair = |((route, other), error)| Pair { route, other, farthest: apart(error) };
                length.rows = pairs.into_iter().zip(errors).map(pair).collect();
                length
            };
            let found = findings(case(), false);
            assert_eq!(found.first().map(|finding| finding.0), guilty, "{errors:?}: {found:?}");
            assert!(found.iter().all(|finding| finding.1.contains("layer 5's V differs by")), "{found:?}");
            assert_eq!(findings(case(), true).is_empty(), is_precision, "{errors:?}");
        }
    }

    #[test]
    fn a_provider_of_another_precision_passes_if_told_and_a_wrong_transport_does_not() {
        assert!(findings(length(&["a"], &["a"], "b"), true).is_empty());
        assert_eq!(findings(length(&["a"], &["b"], "b"), true).len(), 1);
    }

    #[test]
    fn a_text_of_nothing_proves_nothing() {
        let found = findings(length(&[""], &[""], " \n"), true);
        assert!(found.len() == 1 && found[0].1.contains("answers nothing"), "{found:?}");
    }

    #[test]
    fn each_other_promise_has_its_words() {
        let mut evaluated = length(&["a", "a"], &["a"], "a");
        evaluated.handoffs[0].runs[1].answer.evaluated = 100;
        let mut copied = length(&["a", "a"], &["a"], "a");
        copied.handoffs[0].runs[1].decoder_read_bytes = Some(PAGE + 1001);
        let mut failed = length(&["a"], &["a"], "a");
        failed.handoffs[1] = Handoff { failure: Some("no such device".to_owned()), ..handoff(Route::File, &[]) };
        let mut refused = length(&["a"], &["a"], "a");
        refused.handoffs[0] =
            Handoff { failure: Some("Invalid action".to_owned()), cannot_share: true, ..handoff(Route::Shared, &[]) };
        let cases = [
            (evaluated, Route::Shared, "evaluated 100 prompt tokens"),
            (copied, Route::Shared, "read 5097 bytes"),
            (failed, Route::File, "no such device"),
            (refused, Route::Shared, "cannot share its cache: Invalid action"),
            (length(&["a", "b"], &["a"], "a"), Route::Shared, "two handoffs gave two texts"),
        ];
        for (length, route, what) in cases {
            let found = findings(length, false);
            assert_eq!(found.len(), 1, "{what}: {found:?}");
            assert!(found[0].0 == route && found[0].1.contains(what), "{found:?}");
        }
    }

    #[test]
    fn growth_is_judged_only_where_asked_for() {
        let (short, mut long) = (length(&["a"; 3], &["a"], "a"), length(&["a"; 3], &["a"], "a"));
        long.prompt_tokens = 1000;
        for (run, adopt) in long.handoffs[0].runs.iter_mut().zip([100.0, 1.0, 0.1]) {
            run.adopt_ms = Some(adopt);
        }
        let lengths = [short, long];
        let times = Times::of(&lengths).unwrap();
        assert_eq!(times, Times { shortest_ms: 0.75, longest_ms: 1.5, ratio: 2.0, prompt_ratio: 10.0 });
        assert!(judge(&lengths, Some(&times), false, None).is_empty());
        assert!(judge(&lengths, Some(&times), false, Some(2.0)).is_empty());
        let found = judge(&lengths, Some(&times), false, Some(1.5));
        assert!(found.len() == 1 && found[0].what.contains("2.00 times"), "{found:?}");
        assert_eq!(Times::of(&lengths[..1]), None);
    }

    #[test]
    fn a_difference_is_shown_with_what_stands_around_it() {
        let shown = difference("this", "one two three four five six", "that", "one two three four");
        assert_eq!(
            shown,
            "from character 19 on this has \"e two three four five six\", and that \"e two three four\", where it ends"
        );
        assert_eq!(
            difference("this", "", "that", "x"),
            "from character 1 on this has \"\", where it ends, and that \"x\""
        );
        assert!(difference("this", "ähnlich", "that", "ähnliche").contains("\"ähnlich\", where it ends"));
    }
}
