# Ridge regression by gradient descent: Rscript fit.R --rate=R --penalty=P
# Prints "epoch: N  rmse: V" for each epoch, and flushes it: R keeps what it prints to a pipe otherwise.
arguments <- commandArgs(trailingOnly = TRUE)
value <- function(name, default) {
  found <- grep(paste0("^--", name, "="), arguments, value = TRUE)
  if (length(found)) as.numeric(sub(".*=", "", found[1])) else default
}
rate <- value("rate", 0.01)
penalty <- value("penalty", 0)

x <- scale(as.matrix(mtcars[, c("wt", "hp", "qsec", "drat")]))
y <- mtcars$mpg - mean(mtcars$mpg)
train <- seq_len(nrow(x)) %% 4 != 0
weights <- rep(0, ncol(x))
for (epoch in 1:30) {
  error <- x[train, ] %*% weights - y[train]
  weights <- weights - rate * (t(x[train, ]) %*% error / sum(train) + penalty * weights)
  rmse <- sqrt(mean((x[!train, ] %*% weights - y[!train])^2))
  cat(sprintf("epoch: %d  rmse: %.6f\n", epoch, rmse))
  flush(stdout())
}
