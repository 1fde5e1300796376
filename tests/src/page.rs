//! Pages of documentation, as far as tests read them: the fenced blocks.

/// A fenced block of a Markdown page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// What stands behind the opening fence: `sh`, `text`, `hex frame`, …
    pub info: String,
    /// The lines between the fences.
    pub lines: Vec<String>,
    /// The line number of the opening fence, from 1.
    pub line: usize,
}

/// The fenced blocks of a page, in order.
///
/// Panics when a fence is not closed.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(info), None) => {
                open = Some(Block { info: info.trim().to_string(), lines: Vec::new(), line: index + 1 });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.lines.push(line.to_string()),
            (None, None) => {}
        }
    }
    assert_eq!(open, None, "a fence is not closed");
    blocks
}

/// The bytes of a `hex` block: two-digit hex words up to the first `;` of each line.
///
/// Panics on anything else.
pub fn hex(block: &Block) -> Vec<u8> {
    let words = block.lines.iter().flat_map(|line| line.split(';').next().unwrap_or_default().split_whitespace());
    words
        .map(|word| {
            assert_eq!(word.len(), 2, "line {}: {word} is not a byte", block.line);
            u8::from_str_radix(word, 16).unwrap_or_else(|_| panic!("line {}: {word} is not a byte", block.line))
        })
        .collect()
}
