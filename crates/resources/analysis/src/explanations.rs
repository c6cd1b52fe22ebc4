//! Explanations of all codes: meaning, reason, a wrong and a right example. They are the pages of
//! `docs/reference/codes`, embedded so that `voile explain-code` needs no network. A test runs every example.

macro_rules! pages {
    ($($code:literal)*) => {
        /// Each page by its code, in order.
        const PAGES: &[(&str, &str)] = &[$((
            $code,
            include_str!(concat!("../../../../docs/reference/codes/", $code, ".md")),
        )),*];
    };
}

pages! {
    "V0001" "V0002" "V0003" "V0004" "V0005" "V0101" "V0102" "V0103" "V0104" "V0105"
    "V0106" "V0107" "V0108" "V0109" "V0110" "V0111" "V0112" "V0113" "V0114" "V0115"
    "V0116" "V0117" "V0118" "V0119" "V0120" "V0121" "V0122" "V0123" "V0124" "V0301" "V0302" "V0303" "V0304" "V0305" "V0306" "V0307"
    "V0308" "V0309" "V0310" "V0311" "V0312" "V0313" "V0314" "V0315" "V0317"
    "V0318" "V0319" "V0320" "V0321" "V0322" "V0323" "V0324" "V0325" "V0326" "V0327"
    "V0328" "V0329" "V0330" "V0331" "V0332" "V0333" "V0334" "V0335" "V0336" "V0337"
    "V0338" "V0339" "V0340" "V0341" "V0342" "V0343" "V0344" "V0345" "V0346" "V0347" "V0348" "V0349" "V0350" "V0351" "V0352" "V0353" "V0354" "V0355" "V0356" "V0357" "V0360" "V0361" "V0362" "V0363" "V0401" "V0402" "V0403" "V0404" "V0405"
    "V0406" "V0407" "V0408" "V0409" "V0410" "V0411" "V0412" "V0413" "V0414" "V0415"
    "V0416" "V0417" "V0418" "V0419" "V0420" "V0421" "V0422" "V0423" "V0424" "V0425"
    "V0426" "V0427" "V0428" "V0429" "V0430" "V0431" "V0432" "V0433" "V0434" "V0435" "V0436" "V0437" "V0438" "V0440" "V0441" "V0442" "V0443"
    "V0450" "V0451" "V0453" "V0454" "V0455"
}

/// A page, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    /// The code.
    pub code: &'static str,
    /// The whole page, in Markdown.
    pub page: &'static str,
    /// Meaning of the code, in a sentence.
    pub meaning: &'static str,
    /// Why that matters.
    pub why: &'static str,
    /// The state before, if the code is about a change.
    pub before: Option<&'static str>,
    /// An example that gives the code: YAML, or commands of a shell where it is not about text.
    pub wrong: &'static str,
    /// One that does not.
    pub right: &'static str,
}

/// All of them, in order.
pub fn all() -> impl Iterator<Item = Explanation> {
    PAGES
        .iter()
        .filter_map(|(code, page)| Explanation::of(code, page))
}

/// The explanation of a code; the code's case does not matter.
#[must_use]
pub fn explanation(code: &str) -> Option<Explanation> {
    all().find(|one| one.code.eq_ignore_ascii_case(code))
}

impl Explanation {
    fn of(code: &'static str, page: &'static str) -> Option<Self> {
        let body = page.split_once("\n\n")?.1;
        let (meaning, body) = body.split_once("\n\n")?;
        let end = body.find("\nBefore:\n").or(body.find("\nWrong:\n"))?;
        Some(Self {
            code,
            page,
            meaning,
            why: body[..end].trim(),
            before: example(body, "Before"),
            wrong: example(body, "Wrong")?,
            right: example(body, "Right")?,
        })
    }
}

/// The fenced block under a title.
fn example(body: &'static str, title: &str) -> Option<&'static str> {
    let (_, rest) = body.split_once(&format!("\n{title}:\n\n```"))?;
    let (_, rest) = rest.split_once('\n')?;
    let (block, _) = rest.split_once("\n```")?;
    Some(block)
}
