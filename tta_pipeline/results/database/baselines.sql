-- Constants: AlexNet's errors, by which mCE is normalised.

INSERT INTO mce_baselines
SELECT 'alexnet-full', corruption, unnest([1, 2, 3, 4, 5]), unnest(errors), 'hendrycks/robustness, README of an older revision: errors on the 50,000 images of each cell'
FROM (VALUES
    ('gaussian_noise', [0.69528, 0.82542, 0.93554, 0.98138, 0.99452]),
    ('shot_noise', [0.71224, 0.85108, 0.93574, 0.98182, 0.99146]),
    ('impulse_noise', [0.78374, 0.89808, 0.94870, 0.98720, 0.99548]),
    ('defocus_blur', [0.65624, 0.73202, 0.85036, 0.91364, 0.94714]),
    ('glass_blur', [0.64308, 0.75054, 0.88806, 0.91622, 0.93344]),
    ('motion_blur', [0.58430, 0.70048, 0.82108, 0.89750, 0.92638]),
    ('zoom_blur', [0.70008, 0.76992, 0.80784, 0.84198, 0.87198]),
    ('snow', [0.71726, 0.88392, 0.86468, 0.91870, 0.94952]),
    ('frost', [0.61390, 0.79734, 0.88790, 0.89942, 0.93430]),
    ('fog', [0.67474, 0.76050, 0.84378, 0.87260, 0.94500]),
    ('brightness', [0.45140, 0.48502, 0.54048, 0.62166, 0.72440]),
    ('contrast', [0.64548, 0.76150, 0.88874, 0.97760, 0.99270]),
    ('elastic_transform', [0.52596, 0.70116, 0.55686, 0.64076, 0.80554]),
    ('pixelate', [0.52218, 0.54620, 0.73728, 0.87092, 0.91262]),
    ('jpeg_compression', [0.51002, 0.54718, 0.57294, 0.65458, 0.74778]),
    ('speckle_noise', [0.66192, 0.74440, 0.90246, 0.94548, 0.97268]),
    ('gaussian_blur', [0.54732, 0.70444, 0.82574, 0.89864, 0.95940]),
    ('spatter', [0.47196, 0.62194, 0.75052, 0.84132, 0.90182]),
    ('saturate', [0.59342, 0.65514, 0.51174, 0.70834, 0.82260])
) AS published (corruption, errors);

INSERT INTO mce_baselines
SELECT 'alexnet-5k', corruption, unnest([1, 2, 3, 4, 5]), unnest(errors), 'RobustBench/robustbench, model_info/imagenet/corruptions/unaggregated_results.csv, MIT: 1 - accuracy on its list of 5,000'
FROM (VALUES
    ('gaussian_noise', [0.6890, 0.8186, 0.9276, 0.9786, 0.9942]),
    ('shot_noise', [0.7056, 0.8402, 0.9274, 0.9804, 0.9880]),
    ('impulse_noise', [0.7766, 0.8846, 0.9444, 0.9860, 0.9946]),
    ('defocus_blur', [0.6596, 0.7380, 0.8498, 0.9150, 0.9478]),
    ('glass_blur', [0.6514, 0.7588, 0.8874, 0.9200, 0.9364]),
    ('motion_blur', [0.5826, 0.7050, 0.8206, 0.8978, 0.9302]),
    ('zoom_blur', [0.6972, 0.7692, 0.8064, 0.8370, 0.8688]),
    ('snow', [0.7212, 0.8860, 0.8680, 0.9150, 0.9498]),
    ('frost', [0.6212, 0.8024, 0.8948, 0.9006, 0.9384]),
    ('fog', [0.6846, 0.7676, 0.8430, 0.8786, 0.9444]),
    ('brightness', [0.4496, 0.4860, 0.5360, 0.6114, 0.7094]),
    ('contrast', [0.6504, 0.7666, 0.8906, 0.9734, 0.9906]),
    ('elastic_transform', [0.5290, 0.6978, 0.5600, 0.6432, 0.8102]),
    ('pixelate', [0.5246, 0.5498, 0.7330, 0.8712, 0.9142]),
    ('jpeg_compression', [0.5142, 0.5478, 0.5772, 0.6512, 0.7436])
) AS published (corruption, errors);

INSERT INTO mce_baselines VALUES
    ('alexnet-full', 'clean', 0, 0.43478, 'torchvision, AlexNet_Weights.IMAGENET1K_V1: accuracy 56.522 % on the 50,000 validation images'),
    ('alexnet-5k', 'clean', 0, 0.4376, 'RobustBench/robustbench, MIT: 1 - accuracy on its list of 5,000');

-- Published means over groups of sets, as accuracies in percent. Left out: methods that are not here (DPE), and SAR and DeYO, which
-- TTABC measures with the prediction after the update. The severity is 5, as zero_shot's accuracy shows.
INSERT INTO published_means
SELECT shift_group, datasets, num_cells, severity, 'open_clip ViT-B-16-quickgelu openai', method, round(1 - accuracy / 100, 4), 'TTABC (arXiv:2606.14299), ViT-B/16'
FROM (VALUES
    ('zero_shot', 57.20, 63.76, 21.46),
    ('tpt', 59.91, NULL, 25.55),
    ('zero', 60.93, NULL, 22.95),
    ('mta', 60.77, NULL, 25.42),
    ('tps', 63.01, 65.17, 27.43),
    ('onzeta', 59.86, 69.39, 29.38),
    ('ecalp', 60.21, NULL, 29.76),
    ('batclip', 57.46, NULL, 30.91)
) AS accuracies (method, "natural", fine_grained, corruption)
UNPIVOT (accuracy FOR shift_group IN ("natural", fine_grained, corruption))
JOIN (VALUES
    ('natural', 'imagenet_a, imagenet_r, imagenet_sketch, imagenet_v2', 4, 0),
    ('fine_grained', 'caltech101, dtd, eurosat, fgvc_aircraft, flowers102, food101, oxford_pets, stanford_cars, sun397, ucf101', 10, 0),
    ('corruption', 'imagenet_c', 15, 5)
) AS groups (shift_group, datasets, num_cells, severity) USING (shift_group);
