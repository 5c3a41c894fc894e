# Intervals of a slope by the R package quantreg: Rscript quantreg.R DATA TAU DESIGN LENGTH RESULTS
#
# DATA is a CSV file with the columns set, x, y and group, RESULTS receives one line per data set and method.
# Options are the defaults of summary.rq, unless the name of a method says otherwise.
suppressMessages(library(quantreg))
options(warn = -1)
arguments <- commandArgs(trailingOnly = TRUE)
data <- read.csv(arguments[1])
tau <- as.numeric(arguments[2])
design <- arguments[3]
block <- as.integer(arguments[4])
replicates <- 1000
level <- 0.95

# Wald interval from estimate and standard error, with the t distribution by which summary.rq tests.
wald <- function(fit, ...) {
  table <- summary(fit, ...)
  row <- table$coefficients["x", ]
  row[1] + c(-1, 1) * qt((1 + level) / 2, table$rdf) * row[2]
}

rank_inversion <- function(fit, ...) summary(fit, se = "rank", alpha = 1 - level, ...)$coefficients["x", 2:3]

percentile <- function(slopes) quantile(slopes, c((1 - level) / 2, (1 + level) / 2))

block_bootstrap <- function(frame) {
  slope <- function(part) rq.fit.br(cbind(1, part[, 1]), part[, 2], tau = tau)$coefficients[2]
  series <- as.matrix(frame[, c("x", "y")])
  percentile(boot::tsboot(series, slope, R = replicates / 2, l = block, sim = "fixed")$t[, 1])
}

methods <- list(
  "quantreg rank inversion" = function(fit, frame) rank_inversion(fit),
  "quantreg rank inversion, iid=FALSE" = function(fit, frame) rank_inversion(fit, iid = FALSE),
  "quantreg nid" = function(fit, frame) wald(fit, se = "nid"),
  "quantreg wild bootstrap" = function(fit, frame) wald(fit, se = "boot", bsmethod = "wild", R = replicates),
  "quantreg pairs bootstrap, percentile" = function(fit, frame)
    percentile(boot.rq(cbind(1, frame$x), frame$y, tau = tau, R = replicates, bsmethod = "xy")$B[, 2])
)
if (design == "clusters") {
  methods <- c(methods[c(1, 3)], list("quantreg cluster bootstrap" = function(fit, frame)
    wald(fit, se = "boot", bsmethod = "wild", cluster = frame$group, R = replicates)))
}
if (design == "AR(1)") {
  methods <- c(methods[c(1, 3)], list("quantreg, block bootstrap, percentile" = function(fit, frame)
    block_bootstrap(frame)))
}

lines <- list()
for (frame in split(data, data$set)) {
  fit <- rq(y ~ x, tau = tau, data = frame)
  for (name in names(methods)) {
    set.seed(frame$set[1])
    start <- proc.time()
    bounds <- tryCatch(as.numeric(methods[[name]](fit, frame)), error = function(error) conditionMessage(error))
    seconds <- sum((proc.time() - start)[1:2])
    failed <- is.character(bounds)
    lines[[length(lines) + 1]] <- data.frame(
      set = frame$set[1], method = name, low = if (failed) NA else bounds[1], high = if (failed) NA else bounds[2],
      seconds = seconds, error = if (failed) bounds else "")
  }
}
versions <- paste0("R ", getRversion(), ", quantreg ", packageVersion("quantreg"))
write.csv(cbind(do.call(rbind, lines), versions = versions), arguments[5], row.names = FALSE)
