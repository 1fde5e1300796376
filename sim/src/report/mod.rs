//! A run as one page that explains itself: time runs down; clients, the broker's memory, the page cache and the platter stand
//! side by side, with the Plimsoll line between what survives a power loss and what may not.
//!
//! One file, no scripts, nothing loaded from anywhere: it can be mailed.

use crate::model::PROMISES;
use crate::trace::{Lane, Line};
use crate::world::{Finished, Verdict};
use std::fmt::Write;

/// More steps than this are cut in the middle: the beginning says what kind of run it is, the end what went wrong.
const STEPS_MAX: usize = 900;
const KEPT_AT_BEGIN: usize = 150;

const STYLE: &str = include_str!("style.css");

/// Renders a run whose trace was kept in words.
pub fn render(finished: &Finished, title: &str) -> String {
    let lines = finished.trace.lines.as_deref().unwrap_or_default();
    let mut page = String::new();
    let broken = finished.verdict != Verdict::Clean;
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n\
         <p class=\"verdict {class}\"><strong>{promise}</strong> {words}{there}</p>\n",
        title = escape(title),
        class = if broken { "broken" } else { "kept" },
        promise = if broken { name_of(finished.verdict.promise()) } else { "All promises kept.".into() },
        there = if broken { " – <a href=\"#broken\">to the step</a>" } else { "" },
        words = if broken { escape(finished.verdict.words()) } else { String::new() },
    )
    .expect("a string");
    figures(&mut page, finished);
    page.push_str(LEGEND);
    decisions(&mut page, finished);
    page.push_str("</header>\n");
    table(&mut page, lines, broken);
    page.push_str("</body>\n</html>\n");
    page
}

/// `P4, readers below the line:`
fn name_of(promise: &str) -> String {
    match PROMISES.iter().find(|(number, _)| *number == promise) {
        Some((number, name)) => format!("{number}, {name}:"),
        None => format!("{promise}:"),
    }
}

const LEGEND: &str = "<p>Time runs down. A message moves from left to right: a client sends it, the broker holds it in memory, a write \
brings it into the <em>page cache</em>, and a <em>force</em> (fsync) onto the <em>platter</em>. A kill of the process empties the memory; \
a power loss empties the page cache, too, and leaves what the last force had reached. The blue line between cache and platter is the \
<em>Plimsoll line</em>: what is right of it has to survive.</p>\n";

fn figures(page: &mut String, finished: &Finished) {
    let stats = &finished.stats;
    let figures = [
        ("steps", finished.steps),
        ("requests answered", stats.requests),
        ("forces", stats.forces),
        ("rolls", stats.rolls),
        ("starts", stats.starts),
        ("kills", stats.kills),
        ("power losses", stats.power_losses),
        ("injected faults", stats.faults),
    ];
    page.push_str("<ul class=\"figures\">\n");
    for (name, value) in figures {
        writeln!(page, "<li><b>{value}</b> {name}</li>").expect("a string");
    }
    page.push_str("</ul>\n");
}

/// What this run decided that is not mild: the tape, folded away when it is long.
fn decisions(page: &mut String, finished: &Finished) {
    let lines = &finished.tape.lines;
    if lines.is_empty() {
        return;
    }
    let open = if lines.len() <= 40 { " open" } else { "" };
    write!(page, "<details{open}><summary>{} decisions make this run (its tape)</summary>\n<ol>\n", lines.len())
        .expect("a string");
    for line in lines {
        writeln!(page, "<li>{}</li>", escape(&line.to_string())).expect("a string");
    }
    page.push_str("</ol></details>\n");
}

fn table(page: &mut String, lines: &[Line], broken: bool) {
    page.push_str(
        "<table>\n<colgroup><col class=\"time\"><col class=\"clients\"><col class=\"memory\"><col class=\"cache\"><col class=\"line\">\
         <col class=\"platter\"></colgroup>\n<thead><tr><th>ms</th><th>clients</th><th>broker (memory)</th><th>page cache</th>\
         <th class=\"line\" title=\"the Plimsoll line\"></th><th>platter</th></tr></thead>\n<tbody>\n",
    );
    let cut = lines.len().saturating_sub(STEPS_MAX);
    let mut line = None;
    for (at, step) in lines.iter().enumerate() {
        if cut > 0 && (KEPT_AT_BEGIN..KEPT_AT_BEGIN + cut).contains(&at) {
            if at == KEPT_AT_BEGIN {
                writeln!(page, "<tr class=\"cut\"><td></td><td colspan=\"5\">{cut} steps are left out here</td></tr>")
                    .expect("a string");
            }
            line = step.line.or(line);
            continue;
        }
        let is_last = at + 1 == lines.len();
        row(page, step, is_last && broken, &mut line);
    }
    page.push_str("</tbody>\n</table>\n");
}

fn row(page: &mut String, step: &Line, is_break: bool, line: &mut Option<u64>) {
    let ms = step.at_ns as f64 / 1e6;
    let text = escape(&step.text);
    let moved = step.line.filter(|_| step.line != *line);
    *line = step.line.or(*line);
    let mark = moved.map_or(String::new(), |mark| format!("<span>{mark}</span>"));
    if step.lane == Lane::World || is_break {
        let kind = match &step.text {
            _ if is_break => "break",
            text if text.starts_with("POWER") || text.starts_with("PROCESS KILLED") => "crash",
            _ => "world",
        };
        let bolt = if kind == "crash" { BOLT } else { "" };
        let id = if is_break { " id=\"broken\"" } else { "" };
        writeln!(page, "<tr class=\"{kind}\"{id}><td>{ms:.3}</td><td colspan=\"5\">{bolt}{text}</td></tr>")
            .expect("a string");
        return;
    }
    let cell = match step.lane {
        Lane::Client(99) => (0, format!("<i>auditor</i> {text}")),
        Lane::Client(number) => (0, format!("<i class=\"c{}\">client {number}</i> {text}", number % 6)),
        Lane::Broker => (1, text),
        Lane::Cache => (2, text),
        Lane::Disk => (3, text),
        Lane::World => unreachable!("handled above"),
    };
    let class = |at: usize| {
        let words = &step.text;
        let failed = words.contains("injected") || words.contains("no space") || words.contains("fails");
        match at {
            _ if failed => " class=\"failed\"",
            3 if words.starts_with("lost") || words.starts_with("left of") => " class=\"lost\"",
            3 if words.starts_with("left as") || words.starts_with("back again") => " class=\"left\"",
            3 => " class=\"forced\"",
            1 if words.starts_with("to ") => " class=\"reply\"",
            _ => "",
        }
    };
    write!(page, "<tr><td>{ms:.3}</td>").expect("a string");
    for at in 0..4 {
        if at == 3 {
            write!(page, "<td class=\"line\">{mark}</td>").expect("a string");
        }
        match cell.0 == at {
            true => write!(page, "<td{}>{}</td>", class(at), cell.1).expect("a string"),
            false => page.push_str("<td></td>"),
        }
    }
    page.push_str("</tr>\n");
}

const BOLT: &str = "<svg viewBox=\"0 0 10 16\" width=\"10\" height=\"16\" aria-hidden=\"true\"><path d=\"M6 0 0 9h4l-1 7 7-10H5z\"/></svg> ";

fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('·'),
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch;

    #[test]
    fn a_page_is_whole_and_loads_nothing() {
        let page = render(&batch::record_seed(3, None), "Seed 3 & <others>");
        assert!(page.ends_with("</html>\n"));
        assert!(page.contains("Seed 3 &amp; &lt;others&gt;"));
        for foreign in ["http:", "https:", "<script", "src=", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        let rows = page.matches("<tr").count();
        assert!((50..STEPS_MAX + 10).contains(&rows), "{rows} rows");
    }
}
