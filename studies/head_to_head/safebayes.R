# I-square-SafeBayes of a ridge regression by the authors' package: Rscript safebayes.R DATA ETAS VARIANCE RESULTS
#
# DATA is a CSV file with the columns set, x and y, RESULTS receives the cumulative squared errors of each data set. The
# variance of the errors is one. The many degrees of freedom fix the prior variance of the slope.
suppressMessages(library(SafeBayes))
arguments <- commandArgs(trailingOnly = TRUE)
data <- read.csv(arguments[1])
etas <- as.numeric(strsplit(arguments[2], ",")[[1]])
variance <- as.numeric(arguments[3])
degrees <- 1e8
prior <- list(varBR = list(df = degrees, S = variance * degrees))
lines <- list()
for (frame in split(data, data$set)) {
  set.seed(frame$set[1])
  capture.output(fit <- SBRidgeISq(frame$y, frame$x, sigma2 = 1, etaseq = etas, prior = prior, nIter = 2100,
                                   burnIn = 100, thin = 1, pIter = FALSE))
  lines[[length(lines) + 1]] <- data.frame(set = frame$set[1], eta = etas, sum = as.numeric(fit$CEallen))
}
write.csv(cbind(do.call(rbind, lines), version = as.character(packageVersion("SafeBayes"))), arguments[4],
          row.names = FALSE)
