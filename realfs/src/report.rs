//! The lines for the operator on standard output, as text or JSON (docs/protocol.md).

use plimsoll_core::effect::{FieldValue, Report};
use std::io::Write;

/// How the lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// `NAME key=value …`
    #[default]
    Text,
    /// One object a line: `{"event":"NAME","key":value,…}`
    Json,
}

impl LogFormat {
    /// Prints one line. A closed standard output is no reason to stop serving.
    pub(crate) fn print(self, report: &Report) {
        let mut line = self.line(report);
        line.push('\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }

    /// Prints `WARN` and a sentence.
    pub(crate) fn warn(self, sentence: String) {
        match self {
            LogFormat::Text => {
                let mut out = std::io::stdout().lock();
                let _ = writeln!(out, "WARN {sentence}").and_then(|()| out.flush());
            }
            LogFormat::Json => {
                self.print(&Report { name: "WARN", fields: vec![("message", FieldValue::Text(sentence))] })
            }
        }
    }

    fn line(self, report: &Report) -> String {
        match self {
            LogFormat::Text => report.to_string(),
            LogFormat::Json => {
                let mut object = serde_json::Map::new();
                object.insert("event".into(), report.name.into());
                for (key, value) in &report.fields {
                    let value = match value {
                        FieldValue::Number(n) => (*n).into(),
                        FieldValue::Text(text) => text.as_str().into(),
                    };
                    object.insert((*key).into(), value);
                }
                serde_json::Value::Object(object).to_string()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line_in_both_formats() {
        let fields = vec![("topic", FieldValue::Text("a".into())), ("records", FieldValue::Number(3))];
        let report = Report { name: "RECOVERY", fields };
        assert_eq!(LogFormat::Text.line(&report), "RECOVERY topic=a records=3");
        let json: serde_json::Value = serde_json::from_str(&LogFormat::Json.line(&report)).unwrap();
        assert_eq!(json, serde_json::json!({"event": "RECOVERY", "topic": "a", "records": 3}));
    }
}
